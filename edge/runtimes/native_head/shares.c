/* See shares.h. */
#include "shares.h"

#include <float.h>
#include <math.h>

#define TINY ((double)FLT_MIN)

int32_t refocus_shares_version(void) { return REFOCUS_SHARES_VERSION; }

static double at_least(double value, double least) { return value > least ? value : least; }

/* Counts one photo; one whose probabilities are zeros does not count. */
static void count(const struct refocus_shares *s, const int32_t *index, const float *kept) {
    double votes = s->sums[0], spread = s->sums[1];
    double base = 0, share = 0, sum = 0, owned = 0;
    int64_t best = 0;
    double prior = (spread + s->strength) / (votes + s->strength), scale = 1 / (votes + s->strength);
    for (int64_t i = 0; i < s->top; i++) {
        int32_t c = index[i];
        double own = s->counts[c] * scale + prior * s->base[c], ratio = (double)kept[i] / s->base[c];
        base += s->base[c];
        share += own;
        sum += (double)kept[i];
        if (kept[i] > kept[best]) best = i;
        owned += own * ratio;
    }
    s->sums[3] = s->fade * s->sums[3] + (sum > 0);
    s->sums[4] = s->fade * s->sums[4] + !(sum > 0);
    if (!(sum > 0)) return; /* below the rejection threshold */
    double rest = s->top < s->classes && sum < 1 ? (1 - sum) / at_least(1 - base, TINY) : 0;
    double others = rest * at_least(1 - share, 0), personal = at_least(owned + others, TINY);
    double vote = (double)kept[best] * (double)kept[best];
    for (int64_t c = 0; c < 2 * s->classes; c++) s->counts[c] *= s->fade;
    for (int64_t i = 0; i < s->top && s->expected; i++) {
        int32_t c = index[i];
        /* The share before this photo: counts were only faded so far, each class once. */
        double own = s->counts[c] / s->fade * scale + prior * s->base[c];
        s->counts[c] += vote * own * (double)kept[i] / s->base[c] / personal;
    }
    if (!s->expected) {
        s->counts[index[best]] += vote;
        s->counts[s->classes + index[best]] += (double)kept[s->top];
    }
    s->sums[0] = s->fade * votes + vote;
    s->sums[1] = s->fade * spread + (s->expected ? vote * others / personal : 0);
    double evidence = s->evidence_fade * s->sums[2] + log(at_least(1 - vote + vote * personal, TINY)) - s->penalty;
    s->sums[2] = evidence < s->most ? at_least(evidence, s->least) : s->most;
}

void refocus_shares_fold(const struct refocus_shares *s, const int64_t *slots, int64_t n) {
    for (int64_t i = 0; i < n; i++) count(s, s->index + slots[i] * s->top, s->kept + slots[i] * (s->top + 1));
}

/* Log odds that a class is the person's, before credits. */
static double class_odds(const struct refocus_shares *s) {
    double unknown = s->passing * s->sums[4];
    double odds = log((at_least(s->sums[3] - unknown, 0) + 1) / (unknown + 0.25));
    return odds < s->most ? at_least(odds, s->least) : s->most;
}

double refocus_shares_estimate(const struct refocus_shares *s, double *shares, double *weights) {
    double votes = s->sums[0], spread = s->sums[1], evidence = s->sums[2], whole = 0, odds = class_odds(s);
    if (s->vouched) votes = 0;
    for (int64_t c = 0; c < s->classes; c++) {
        shares[c] = s->counts[c];
        if (!s->vouched || !(shares[c] > 0)) continue; /* most classes have no votes */
        shares[c] /= 1 + exp(-odds - s->counts[s->classes + c]);
        votes += shares[c];
    }
    weights[0] = 1 / (1 + exp(evidence - s->odds));
    weights[1] = 1 - weights[0];
    for (int64_t c = 0; c < s->classes; c++) {
        double own = (shares[c] + (spread + s->strength) * s->base[c]) / (votes + s->strength);
        own = weights[0] * s->base[c] + weights[1] * own;
        whole += shares[c] = s->elsewhere * s->base[c] + (1 - s->elsewhere) * own;
    }
    for (int64_t c = 0; c < s->classes; c++) shares[c] /= whole;
    double none = 1 / (1 + exp(-s->odds));
    return log(none + (1 - none) * exp(evidence));
}

void refocus_shares_top(int64_t classes, int64_t k, const double *probability, int32_t *index, float *row) {
    int64_t count = 0;
    for (int64_t c = 0; c < classes; c++) {
        if (count == k && probability[c] <= probability[index[k - 1]]) continue;
        int64_t at = count < k ? count++ : k - 1;
        for (; at > 0 && probability[index[at - 1]] < probability[c]; at--) index[at] = index[at - 1];
        index[at] = (int32_t)c;
    }
    for (int64_t i = 0; i < k; i++) row[i] = (float)probability[index[i]];
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
static void bound(
    const struct refocus_shares *s, const struct refocus_share_answer *a, const double *without, double part, double *logits) {
    int64_t best = 0;
    if (!(s->support > 0)) return;
    for (int64_t c = 1; c < s->classes; c++)
        if (without[c] > without[best]) best = c;
    double least = without[best] + log(s->support);
    for (int64_t c = 0; c < s->classes; c++)
        if (without[c] < least && a->shift[c] > a->shift[best]) logits[c] -= part * (a->shift[c] - a->shift[best]);
}

/* The answer of a head with a history, with shares; returns how far these moved it. */
static double with_head(const struct refocus_shares *s, const struct refocus_share_answer *a) {
    int64_t classes = s->classes;
    double *own = a->scratch, *mixed = own + classes, trust = s->gated ? a->said[1] : 1, shared = 0;
    double whole = softmax(classes, a->head, own);
    if (trust < 1) {
        for (int64_t c = 0; c < classes; c++) a->logits[c] = a->plain[c] + a->shift[c];
        shared = softmax(classes, a->logits, mixed);
    }
    for (int64_t c = 0; c < classes; c++) {
        a->logits[c] = a->head[c] - whole + s->with_head * a->shift[c];
        if (trust < 1) a->logits[c] = (1 - trust) * (a->plain[c] + a->shift[c] - shared) + trust * a->logits[c];
        mixed[c] = (1 - trust) * a->plain[c] + trust * a->head[c];
    }
    bound(s, a, mixed, 1 - trust + trust * s->with_head, a->logits);
    softmax(classes, a->logits, mixed);
    return half_distance(classes, mixed, own);
}

int32_t refocus_shares_answer(const struct refocus_shares *s, int64_t photos, const struct refocus_share_answer *a) {
    double *weighed = a->scratch, likelihood = 0;
    for (int64_t c = 0; c < s->classes; c++) {
        if (!isfinite(a->outputs[c])) return -1;
        a->plain[c] = a->outputs[c];
        if (s->scale) a->plain[c] *= s->scale[c];
        if (s->bias) a->plain[c] += s->bias[c];
        a->plain[c] /= s->temperature;
    }
    softmax(s->classes, a->plain, a->alone);
    a->said[0] = refocus_shares_estimate(s, a->shares, a->weights);
    double ratio = 1, shift = 0; /* of the class before: classes without votes mostly have the same ones */
    for (int64_t c = 0; c < s->classes; c++) {
        weighed[c] = at_least(a->shares[c], TINY) / s->base[c];
        if (weighed[c] != ratio) shift = log(ratio = weighed[c]);
        a->shift[c] = shift;
        a->shared[c] = a->plain[c] + shift;
    }
    bound(s, a, a->plain, 1, a->shared);
    for (int64_t c = 0; c < s->classes; c++) {
        if (a->shared[c] != a->plain[c] + a->shift[c]) weighed[c] = exp(a->shared[c] - a->plain[c]); /* bounded */
        likelihood += weighed[c] *= a->alone[c];
    }
    double trust = 1 - ((1 - s->elsewhere) * a->weights[0] + s->elsewhere) / likelihood;
    a->said[1] = photos > 0 && trust > 0 ? (trust < 1 ? trust : 1) : 0;
    a->said[3] = likelihood;
    refocus_shares_top(s->classes, s->top, a->alone, a->index, a->row);
    if (a->head) {
        a->said[2] = with_head(s, a);
        return 0;
    }
    for (int64_t c = 0; c < s->classes; c++) weighed[c] /= likelihood;
    a->said[2] = half_distance(s->classes, weighed, a->alone);
    for (int64_t c = 0; c < s->classes; c++) a->logits[c] = a->shared[c];
    return 0;
}
