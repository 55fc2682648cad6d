/* The native head: everything behind the encoder, for one photo. Plain C11 with GCC's vector types, no libraries, no
 * allocation. The layout of the numbers is docs/formats/native-head.md; the arithmetic is that of
 * cloud_train/methods/iciia/device_head.py.
 *
 * Notation: D feature width, S signature width, P partitions, d = D / P, N layers, H heads, W attention window, L rows of
 * the history (and of traits), C classes, K traits. */
#ifndef REFOCUS_HEAD_H
#define REFOCUS_HEAD_H

#include <stdint.h>

#define REFOCUS_NATIVE_VERSION 1 /* of this interface and of the layout of the numbers */

/* Members of the configuration, in the order of the file's tensor `config`. */
enum {
    VERSION, FORM, WIDTH, SIGNATURE, PARTITIONS, LAYERS, HEADS, WINDOW, ROWS, CLASSES, TRAITS, HIDDEN, CLASSIFIER, FLAGS,
    PRECISION, WARM_UP, CONFIG
};
enum { FORM_WINDOW, FORM_STREAMING };
enum { CLASSIFIER_SHARED, CLASSIFIER_OWN, CLASSIFIER_RESIDUAL };
enum { SHUFFLE = 1, CAUSAL = 2, SEVERAL = 4 };
enum { FP32, W16, W8 };
enum { BASELINE, AVX2, AVX512, VARIANTS };

/* How many of each there must be; of the first three, in the file. */
struct refocus_sizes {
    int64_t floats;   /* float32 in the tensor `floats` */
    int64_t integers; /* int16 in the tensor `int16` */
    int64_t bytes;    /* int8 in the tensor `int8` */
    int64_t scratch;  /* float32 that a run needs to work in */
};

/* One photo and what is known of those before it; which member is used depends on the form. */
struct refocus_io {
    const float *feature;         /* (D + S) */
    const int64_t *length;        /* photos before this one */
    const float *history;         /* window: (L, D + S), newest last */
    const float *const *caches;   /* streaming: keys and values of each layer in turn, 2 N times (H, W - 1, D / H) */
    const float *traits;          /* (L, K), where K > 0 */
    float *plain;                 /* (C) logits of the classifier without history */
    float *calibrated;            /* (C) with it */
    float *logits;                /* (C) delivered log-probabilities; of several labels log-odds */
    float *attention;             /* window: (L + 1), streaming: (W); the photo itself last */
    float *trust;                 /* (1) */
    float *const *rows;           /* streaming: the photo's own keys and values, 2 N times (D) */
    float *trait;                 /* (K) */
};

/* A packed head: its configuration and the three streams of numbers, in the order in which they are read. */
struct refocus_head {
    const int64_t *config; /* (CONFIG) */
    const float *floats;
    const int16_t *integers;
    const int8_t *bytes;
};

#if defined(__GNUC__) && !defined(_WIN32)
#define REFOCUS_API __attribute__((visibility("default")))
#else
#define REFOCUS_API
#endif

/* REFOCUS_NATIVE_VERSION of the library. */
REFOCUS_API int32_t refocus_version(void);

/* The fastest variant that this processor and its system can run. */
REFOCUS_API int32_t refocus_variant(void);

/* Name of a variant, as "avx2"; "" where this library has none of that number. */
REFOCUS_API const char *refocus_variant_name(int32_t variant);

/* Checks a configuration and says how many numbers it needs. Returns 0, or 1 + the member that is out of range. */
REFOCUS_API int32_t refocus_head_sizes(const int64_t *config, struct refocus_sizes *sizes);

/* Answers one photo. The head must be of the sizes that refocus_head_sizes gave, scratch is used by one run at a time.
 * Returns 0; or -1 where the library has no such variant. */
REFOCUS_API int32_t refocus_head_run(
    const struct refocus_head *head, const struct refocus_io *io, float *scratch, int32_t variant);

/* The twelve numbers of a photo itself, of normalised pixels (3, side, side), side >= 2: see
 * export/program/photo_signature.py. */
REFOCUS_API void refocus_photo_signature(const float *pixels, int64_t side, float *signature);

#endif
