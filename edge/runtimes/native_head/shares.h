/* The arithmetic of class shares, for one photo: docs/formats/class-shares.md, edge/recognize/class_shares.py. Plain C11
 * and the mathematical functions of the C library; no allocation.
 *
 * Notation: C classes, k most likely classes that are kept of a photo, J hypotheses. */
#ifndef REFOCUS_SHARES_H
#define REFOCUS_SHARES_H

#include "head.h"

#define REFOCUS_SHARES_VERSION 1 /* of this interface */

/* Memory of the caller: settings, what is kept of each photo by its slot, and sums over photos. */
struct refocus_shares {
    int64_t classes, top, hypotheses;
    const double *base;     /* (C) b */
    const double *strength; /* (J) a */
    const double *fading;   /* (J) halvings a photo */
    const double *prior;    /* (J + 1) logarithms: of "no shift" and of each hypothesis */
    double elsewhere;
    const int32_t *index;   /* (slots, k) classes of a photo */
    const float *ratio;     /* (slots, k) p / b of these */
    const float *rest;      /* (slots) p / b of all others */
    const int64_t *born;    /* (slots) when the photo came */
    float *owned;           /* (slots, J, k) responsibilities */
    float *others;          /* (slots, J) of all other classes */
    float *predicted;       /* (slots, J) logarithm of the photo's likelihood before it was counted */
    double *counts;         /* (J, C) N, scaled to the time `origin` */
    double *spread;         /* (J) R, likewise */
    double *photos;         /* (J) n, likewise */
    double *evidence;       /* (J) E */
};

/* REFOCUS_SHARES_VERSION of the library. */
REFOCUS_API int32_t refocus_shares_version(void);

/* E-steps of the photos in some slots (n) under the present shares, and the sums that follow. `first`: they are new.
 * scratch: n (k + 1) numbers. */
REFOCUS_API void refocus_shares_count(
    const struct refocus_shares *state, int64_t time, int64_t origin, const int64_t *slots, int64_t n, int32_t first,
    double *scratch);

/* The shares (C), the weights (J + 1) of "no shift" and the hypotheses; returns the evidence. */
REFOCUS_API double refocus_shares_estimate(
    const struct refocus_shares *state, int64_t time, int64_t origin, double *shares, double *weights);

/* The k largest of the probabilities (C), in descending order, ties by the smaller class. */
REFOCUS_API void refocus_shares_top(int64_t classes, int64_t k, const double *probability, int32_t *index, float *kept);

#endif
