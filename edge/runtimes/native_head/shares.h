/* The arithmetic of class shares, for one photo: docs/formats/class-shares.md, edge/recognize/class_shares.py. Plain C11
 * and the mathematical functions of the C library; no allocation.
 *
 * Notation: C classes, k most likely classes that are kept of a photo, J hypotheses. */
#ifndef REFOCUS_SHARES_H
#define REFOCUS_SHARES_H

#include "head.h"

#define REFOCUS_SHARES_VERSION 3 /* of this interface */

/* Memory of the caller: settings, what is kept of each photo by its slot, and sums over photos. */
struct refocus_shares {
    int64_t classes, top, hypotheses;
    const double *base;     /* (C) b */
    const double *strength; /* (J) a */
    const double *fading;   /* (J) halvings a photo */
    const double *prior;    /* (J + 1) logarithms: of "no shift" and of each hypothesis */
    double elsewhere;
    int32_t *index;         /* (slots, k) classes of a photo */
    float *ratio;           /* (slots, k) p / b of these */
    float *rest;            /* (slots) p / b of all others */
    int64_t *born;          /* (slots) when the photo came */
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

/* Adds a photo in a slot that is empty: refocus_shares_count for it, then for the slots (n) of older photos that are
 * revisited. Returns the time to which the sums are scaled, which this may move on to time + 1. The classes must be k different
 * ones below C.
 *
 * time: photos added before it. evidence_fading: halvings a photo. scratch: max(1, n) (k + 1) numbers. */
REFOCUS_API int64_t refocus_shares_add(
    const struct refocus_shares *state, int64_t time, int64_t origin, double evidence_fading, int64_t slot,
    const int32_t *classes, const float *probabilities, const int64_t *slots, int64_t n, double *scratch);

/* Takes a photo's contribution out of the sums, and empties its slot. time, origin: as of the sums. */
REFOCUS_API void refocus_shares_forget(
    const struct refocus_shares *state, int64_t time, int64_t origin, double evidence_fading, int64_t slot);

/* How a classifier's outputs become logits. */
struct refocus_calibration {
    const double *scale; /* (C), or NULL: ones */
    const double *bias;  /* (C), or NULL: zeros */
    double temperature;
};

/* What is computed for one photo, and the memory of the caller for it. Vectors are (C). */
struct refocus_share_answer {
    const double *outputs; /* of the classifier without history */
    const double *head;    /* logits of a head with a history of its own, or NULL */
    double exponent;       /* of the shares beside such a head */
    double support;        /* least part of the largest probability without shares that a class needs to gain on its class; 0: none */
    int32_t gated;         /* whether the trust decides how far it is followed */
    double *logits;        /* of the answer */
    double *shared;        /* of the classifier with shares */
    double *plain;         /* of the classifier without, calibrated */
    double *shift;         /* log(s / b), not bounded */
    double *alone;         /* probabilities of these */
    double *shares;
    double *scratch;       /* two vectors */
    double *weights;       /* (J + 1) of "no shift" and of each hypothesis */
    double *said;          /* (3) evidence, trust, and how far shares moved the answer: half the L1 distance to the one without */
    int32_t *index;        /* (k) what is kept of the photo: its classes */
    float *kept;           /* (k) and their probabilities */
};

/* The answer to one photo. Returns 0, or -1 where the outputs hold NaN or infinity. photos: how many were counted. */
REFOCUS_API int32_t refocus_shares_answer(
    const struct refocus_shares *state, const struct refocus_calibration *calibration, int64_t time, int64_t origin,
    int64_t photos, const struct refocus_share_answer *answer);

/* The k largest of the probabilities (C), in descending order, ties by the smaller class. */
REFOCUS_API void refocus_shares_top(int64_t classes, int64_t k, const double *probability, int32_t *index, float *kept);

#endif
