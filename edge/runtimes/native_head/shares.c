/* See shares.h. */
#include "shares.h"

#include <float.h>
#include <math.h>

#define TINY ((double)FLT_MIN)
#define RESCALE 40.0 /* halvings after which decayed counts are brought back to scale */

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

/* Brings the sums to another time, if they have to be; returns the time to which they are scaled. */
static int64_t rescaled(const struct refocus_shares *s, int64_t time, int64_t origin) {
    double most = 0;
    for (int64_t j = 0; j < s->hypotheses; j++) {
        double halvings = (double)(time - origin) * s->fading[j];
        if (halvings > most) most = halvings;
    }
    if (!(most > RESCALE)) return origin;
    for (int64_t j = 0; j < s->hypotheses; j++) {
        double fade = exp2(-(double)(time - origin) * s->fading[j]);
        for (int64_t c = 0; c < s->classes; c++) s->counts[j * s->classes + c] *= fade;
        s->spread[j] *= fade;
        s->photos[j] *= fade;
    }
    return time;
}

int64_t refocus_shares_add(
    const struct refocus_shares *s, int64_t time, int64_t origin, double evidence_fading, int64_t slot,
    const int32_t *classes, const float *probabilities, const int64_t *slots, int64_t n, double *scratch) {
    double covered = 0, sum = 0, rest = 0;
    for (int64_t i = 0; i < s->top; i++) {
        s->index[slot * s->top + i] = classes[i];
        s->ratio[slot * s->top + i] = (float)((double)probabilities[i] / s->base[classes[i]]);
        covered += s->base[classes[i]];
        sum += (double)probabilities[i];
    }
    if (s->top < s->classes && sum < 1) rest = (1 - sum) / (1 - covered > TINY ? 1 - covered : TINY);
    s->rest[slot] = (float)rest;
    s->born[slot] = time;
    for (int64_t j = 0; j < s->hypotheses; j++) s->evidence[j] *= exp2(-evidence_fading);
    origin = rescaled(s, time + 1, origin);
    refocus_shares_count(s, time + 1, origin, &slot, 1, 1, scratch);
    if (n > 0) refocus_shares_count(s, time + 1, origin, slots, n, 0, scratch);
    return origin;
}

void refocus_shares_forget(
    const struct refocus_shares *s, int64_t time, int64_t origin, double evidence_fading, int64_t slot) {
    const int32_t *index = s->index + slot * s->top;
    double age = (double)(time - 1 - s->born[slot]);
    for (int64_t j = 0; j < s->hypotheses; j++) {
        double weight = exp2((double)(s->born[slot] - origin) * s->fading[j]), *counts = s->counts + j * s->classes;
        float *owned = s->owned + (slot * s->hypotheses + j) * s->top;
        for (int64_t i = 0; i < s->top; i++) {
            double left = counts[index[i]] - weight * (double)owned[i];
            counts[index[i]] = left > 0 ? left : 0;
            owned[i] = 0;
        }
        int64_t at = slot * s->hypotheses + j;
        s->spread[j] -= weight * (double)s->others[at];
        if (s->spread[j] < 0) s->spread[j] = 0;
        s->photos[j] -= weight;
        if (s->photos[j] < 0) s->photos[j] = 0;
        s->evidence[j] -= exp2(-age * evidence_fading) * (double)s->predicted[at];
        s->others[at] = s->predicted[at] = 0;
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

/* Softmax; returns the logarithm of the sum of exponentials. */
static double softmax(int64_t classes, const double *logits, double *probability) {
    double most = logits[0], sum = 0;
    for (int64_t c = 1; c < classes; c++)
        if (logits[c] > most) most = logits[c];
    for (int64_t c = 0; c < classes; c++) sum += probability[c] = exp(logits[c] - most);
    for (int64_t c = 0; c < classes; c++) probability[c] /= sum;
    return most + log(sum);
}

static double half_distance(int64_t classes, const double *one, const double *other) {
    double sum = 0;
    for (int64_t c = 0; c < classes; c++) sum += fabs(one[c] - other[c]);
    return sum / 2;
}

/* Takes off what classes that the answer without shares does not support would gain on its best class. */
static void bound(int64_t classes, const struct refocus_share_answer *a, const double *without, double part, double *logits) {
    int64_t best = 0;
    if (!(a->support > 0)) return;
    for (int64_t c = 1; c < classes; c++)
        if (without[c] > without[best]) best = c;
    double least = without[best] + log(a->support);
    for (int64_t c = 0; c < classes; c++)
        if (without[c] < least && a->shift[c] > a->shift[best]) logits[c] -= part * (a->shift[c] - a->shift[best]);
}

/* The answer of a head beside shares; returns how far these moved it. */
static double beside(int64_t classes, const struct refocus_share_answer *a) {
    double *own = a->scratch, *mixed = own + classes, trust = a->gated ? a->said[1] : 1, shared = 0;
    double whole = softmax(classes, a->head, own);
    if (trust < 1) {
        for (int64_t c = 0; c < classes; c++) a->logits[c] = a->plain[c] + a->shift[c];
        shared = softmax(classes, a->logits, mixed);
    }
    for (int64_t c = 0; c < classes; c++) {
        a->logits[c] = a->head[c] - whole + a->exponent * a->shift[c];
        if (trust < 1) a->logits[c] = (1 - trust) * (a->plain[c] + a->shift[c] - shared) + trust * a->logits[c];
        mixed[c] = (1 - trust) * a->plain[c] + trust * a->head[c];
    }
    bound(classes, a, mixed, 1 - trust + trust * a->exponent, a->logits);
    softmax(classes, a->logits, mixed);
    return half_distance(classes, mixed, own);
}

int32_t refocus_shares_answer(
    const struct refocus_shares *s, const struct refocus_calibration *calibration, int64_t time, int64_t origin,
    int64_t photos, const struct refocus_share_answer *a) {
    double *weighed = a->scratch, likelihood = 0;
    for (int64_t c = 0; c < s->classes; c++) {
        if (!isfinite(a->outputs[c])) return -1;
        a->plain[c] = a->outputs[c];
        if (calibration->scale) a->plain[c] *= calibration->scale[c];
        if (calibration->bias) a->plain[c] += calibration->bias[c];
        a->plain[c] /= calibration->temperature;
    }
    softmax(s->classes, a->plain, a->alone);
    a->said[0] = refocus_shares_estimate(s, time, origin, a->shares, a->weights);
    for (int64_t c = 0; c < s->classes; c++) {
        a->shift[c] = log((a->shares[c] > TINY ? a->shares[c] : TINY) / s->base[c]);
        a->shared[c] = a->plain[c] + a->shift[c];
    }
    bound(s->classes, a, a->plain, 1, a->shared);
    for (int64_t c = 0; c < s->classes; c++) {
        weighed[c] = a->alone[c] * exp(a->shared[c] - a->plain[c]);
        likelihood += weighed[c];
    }
    double trust = 1 - ((1 - s->elsewhere) * a->weights[0] + s->elsewhere) / likelihood;
    a->said[1] = photos > 0 && trust > 0 ? (trust < 1 ? trust : 1) : 0;
    refocus_shares_top(s->classes, s->top, a->alone, a->index, a->kept);
    if (a->head) {
        a->said[2] = beside(s->classes, a);
        return 0;
    }
    for (int64_t c = 0; c < s->classes; c++) weighed[c] /= likelihood;
    a->said[2] = half_distance(s->classes, weighed, a->alone);
    for (int64_t c = 0; c < s->classes; c++) a->logits[c] = a->shared[c];
    return 0;
}
