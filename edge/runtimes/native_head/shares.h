/* The arithmetic of class shares: docs/formats/class-shares.md, edge/recognize/class_shares.py. Plain C11 and the
 * mathematical functions of the C library; no allocation.
 *
 * Notation: C classes, k most likely classes that are kept of a photo. Vectors are (C) unless a comment gives a shape. */
#ifndef REFOCUS_SHARES_H
#define REFOCUS_SHARES_H

#include "head.h"

#define REFOCUS_SHARES_VERSION 6 /* of this interface */

/* Settings of a bundle, and the state of one person, in memory of the caller. */
struct refocus_shares {
    int64_t classes, top;
    const double *base;       /* b */
    const double *scale;      /* of calibration, or NULL: ones */
    const double *bias;       /* or NULL: zeros */
    double temperature;
    double strength;                 /* weight of the prior, in photos */
    double fade, evidence_fade;      /* factors per photo */
    double odds;                     /* log odds of "no shift" before the first photo */
    double penalty, least, most;     /* evidence that a photo costs, and limits of it and of the log odds of a class */
    double elsewhere, support;
    double with_head;                /* exponent of the shares in the answer of a head with a history */
    double passing;                  /* unknown photos above the rejection threshold, for each one below it */
    int32_t expected;                /* whether a photo counts for all of its classes */
    int32_t gated;                   /* whether the trust decides how far such a head is followed */
    int32_t vouched;                 /* whether the credits of a class decide how far its votes count */
    const int32_t *index;            /* (slots, k) classes of a photo */
    const float *kept;               /* (slots, k + 1) and their probabilities, and the credit of the photo */
    double *counts;                  /* (2, C) N and L */
    double *sums;                    /* (5) votes, those of classes beyond k, evidence, photos above and below the threshold */
};

/* One answer, in memory of the caller. */
struct refocus_share_answer {
    const double *outputs; /* of the classifier without history */
    const double *head;    /* logits of a head with a history, or NULL */
    double *logits;        /* of the answer */
    double *shared;        /* of the classifier with shares */
    double *plain;         /* of the classifier without, calibrated */
    double *shift;         /* log(s / b), not bounded */
    double *alone;         /* probabilities of these */
    double *shares;
    double *scratch; /* two vectors */
    double *weights; /* (2) of "no shift" and of the person's shares */
    double *said;    /* (4) evidence, trust, half the L1 distance to the answer without shares, likelihood */
    int32_t *index;  /* (k) what is kept of the photo: its classes */
    float *row;      /* (k) and their probabilities */
};

/* REFOCUS_SHARES_VERSION of the library. */
REFOCUS_API int32_t refocus_shares_version(void);

/* Counts the photos of some slots (n), in this order. Classes of a slot must be k different ones below C. */
REFOCUS_API void refocus_shares_fold(const struct refocus_shares *state, const int64_t *slots, int64_t n);

/* The shares, and the weights (2) of "no shift" and of the person's; returns the evidence. */
REFOCUS_API double refocus_shares_estimate(const struct refocus_shares *state, double *shares, double *weights);

/* The answer to one photo. Returns 0, or -1 where the outputs hold NaN or infinity. photos: number of counted ones. */
REFOCUS_API int32_t refocus_shares_answer(
    const struct refocus_shares *state, int64_t photos, const struct refocus_share_answer *answer);

/* The k largest of the probabilities (C), in descending order, ties by the smaller class. */
REFOCUS_API void refocus_shares_top(int64_t classes, int64_t k, const double *probability, int32_t *index, float *row);

#endif
