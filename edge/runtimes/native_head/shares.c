/* See shares.h. */
#include "shares.h"

#include <float.h>
#include <math.h>

#define TINY ((double)FLT_MIN)

int32_t refocus_shares_version(void) { return REFOCUS_SHARES_VERSION; }

/* One photo under one hypothesis: responsibilities (k) of its classes, of all others behind them; returns the likelihood. */
static double step_e(
    const struct refocus_shares *s, const double *counts, int64_t slot, double scale, double prior, double *owned) {
    const int32_t *index = s->index + slot * s->top;
    const float *ratio = s->ratio + slot * s->top;
    double covered = 0, total = 0;
    for (int64_t i = 0; i < s->top; i++) {
        double share = scale * counts[index[i]] + prior * s->base[index[i]];
        owned[i] = share * (double)ratio[i];
        covered += share;
        total += owned[i];
    }
    double left = 1.0 - covered;
    owned[s->top] = (double)s->rest[slot] * (left > 0 ? left : 0);
    total += owned[s->top];
    if (total < TINY) total = TINY;
    for (int64_t i = 0; i <= s->top; i++) owned[i] /= total;
    return total;
}

/* Puts what a photo now owns in the place of what it owned. */
static void take_over(
    const struct refocus_shares *s, double *counts, int64_t slot, int64_t j, double weight, const double *owned) {
    const int32_t *index = s->index + slot * s->top;
    float *before = s->owned + (slot * s->hypotheses + j) * s->top;
    float *others = s->others + slot * s->hypotheses + j;
    for (int64_t i = 0; i < s->top; i++) {
        counts[index[i]] += weight * (owned[i] - (double)before[i]);
        before[i] = (float)owned[i];
    }
    s->spread[j] += weight * (owned[s->top] - (double)*others);
    *others = (float)owned[s->top];
}

void refocus_shares_count(
    const struct refocus_shares *s, int64_t time, int64_t origin, const int64_t *slots, int64_t n, int32_t first,
    double *scratch) {
    for (int64_t j = 0; j < s->hypotheses; j++) {
        double *counts = s->counts + j * s->classes;
        double fade = exp2(-(double)(time - origin) * s->fading[j]);
        double all = fade * s->photos[j] + s->strength[j];
        double prior = (fade * s->spread[j] + s->strength[j]) / all, evidence = 0, photos = 0;
        for (int64_t r = 0; r < n; r++) {
            double total = step_e(s, counts, slots[r], fade / all, prior, scratch + r * (s->top + 1));
            if (first) {
                double predicted = log(total);
                s->predicted[slots[r] * s->hypotheses + j] = (float)predicted;
                evidence += predicted;
            }
        }
        for (int64_t r = 0; r < n; r++) {
            double weight = exp2(s->fading[j] * (double)(s->born[slots[r]] - origin));
            take_over(s, counts, slots[r], j, weight, scratch + r * (s->top + 1));
            photos += weight;
        }
        if (first) s->photos[j] += photos, s->evidence[j] += evidence;
    }
}

double refocus_shares_estimate(
    const struct refocus_shares *s, int64_t time, int64_t origin, double *shares, double *weights) {
    double most = s->prior[0], sum = 0, even, whole = 0;
    for (int64_t j = 0; j < s->hypotheses; j++) {
        weights[j + 1] = s->prior[j + 1] + s->evidence[j];
        if (weights[j + 1] > most) most = weights[j + 1];
    }
    weights[0] = s->prior[0];
    for (int64_t j = 0; j <= s->hypotheses; j++) sum += weights[j] = exp(weights[j] - most);
    for (int64_t j = 0; j <= s->hypotheses; j++) weights[j] /= sum;
    even = weights[0];
    for (int64_t c = 0; c < s->classes; c++) shares[c] = 0;
    for (int64_t j = 0; j < s->hypotheses; j++) {
        const double *counts = s->counts + j * s->classes;
        double fade = exp2(-(double)(time - origin) * s->fading[j]);
        double personal = weights[j + 1] / (fade * s->photos[j] + s->strength[j]);
        even += personal * (fade * s->spread[j] + s->strength[j]);
        for (int64_t c = 0; c < s->classes; c++) shares[c] += personal * fade * counts[c];
    }
    for (int64_t c = 0; c < s->classes; c++) {
        shares[c] = (1 - s->elsewhere) * (shares[c] + even * s->base[c]) + s->elsewhere * s->base[c];
        whole += shares[c];
    }
    for (int64_t c = 0; c < s->classes; c++) shares[c] /= whole;
    return log(sum) + most;
}

void refocus_shares_top(int64_t classes, int64_t k, const double *probability, int32_t *index, float *kept) {
    int64_t count = 0;
    for (int64_t c = 0; c < classes; c++) {
        if (count == k && probability[c] <= probability[index[k - 1]]) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && probability[index[at - 1]] < probability[c]; at--) index[at] = index[at - 1];
        index[at] = (int32_t)c;
    }
    for (int64_t i = 0; i < k; i++) kept[i] = (float)probability[index[i]];
}
