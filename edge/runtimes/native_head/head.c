/* Checks, the choice of a variant, and the variants themselves: run.inc compiled once for each instruction set. */
#include "head.h"

#if defined(__x86_64__)
#include <immintrin.h> /* instructions, no library */
#endif

#define TILE 16 /* outputs that are computed together, in every variant and in the file */
#define AHEAD 2048 /* bytes between the weights that are asked for and those that are read */

static int64_t padded(int64_t count) { return (count + TILE - 1) / TILE * TILE; }

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/* Numbers of a dense matrix (outputs, inputs): outputs in tiles. */
static int64_t dense_size(int64_t outputs, int64_t inputs) { return padded(outputs) * inputs; }

/* Numbers of k projections (D to D) of P partitions each: see docs/formats/native-head.md. */
static int64_t projection_size(const int64_t *config, int64_t k) {
    int64_t d = config[WIDTH] / config[PARTITIONS];
    if (config[PARTITIONS] >= TILE) return k * d * d * padded(config[PARTITIONS]);
    return config[PARTITIONS] * dense_size(k * d, d);
}

/* Outputs of the same with their padding, the size of a bias. */
static int64_t projection_outputs(const int64_t *config, int64_t k) {
    int64_t d = config[WIDTH] / config[PARTITIONS];
    if (config[PARTITIONS] >= TILE) return k * d * padded(config[PARTITIONS]);
    return config[PARTITIONS] * padded(k * d);
}

/* Scales of the same: one for all partitions, or in tiles as the bias. */
static int64_t projection_scales(const int64_t *config, int64_t k) {
    if (config[PARTITIONS] >= TILE) return padded(k * config[WIDTH] / config[PARTITIONS]);
    return projection_outputs(config, k);
}

/* Smallest and largest value of each member. */
static const int64_t LIMITS[CONFIG][2] = {
    [VERSION] = {REFOCUS_NATIVE_VERSION, REFOCUS_NATIVE_VERSION},
    [FORM] = {0, FORM_STREAMING},
    [WIDTH] = {1, 1 << 16},
    [SIGNATURE] = {0, 1 << 10},
    [PARTITIONS] = {1, 1 << 16},
    [LAYERS] = {1, 64},
    [HEADS] = {1, 1 << 10},
    [WINDOW] = {1, 1 << 16},
    [ROWS] = {0, 1 << 20},
    [CLASSES] = {1, 1 << 22},
    [TRAITS] = {0, 1 << 12},
    [HIDDEN] = {0, 1 << 12},
    [CLASSIFIER] = {0, CLASSIFIER_RESIDUAL},
    [FLAGS] = {0, SHUFFLE | CAUSAL | SEVERAL},
    [PRECISION] = {0, W8},
    [WARM_UP] = {0, 1 << 30},
};

#define STATISTICS 17 /* that the gate reads */

static int32_t out_of_range(const int64_t *config) {
    for (int member = 0; member < CONFIG; member++)
        if (config[member] < LIMITS[member][0] || config[member] > LIMITS[member][1]) return 1 + member;
    if (config[WIDTH] % config[PARTITIONS]) return 1 + PARTITIONS;
    if (config[WIDTH] % config[HEADS]) return 1 + HEADS;
    /* A streaming head replays its receptive field; one with full attention has a single layer. */
    if (config[FORM] == FORM_STREAMING && config[ROWS] != config[LAYERS] * (config[WINDOW] - 1)) return 1 + ROWS;
    if (config[FORM] == FORM_STREAMING && !(config[FLAGS] & CAUSAL) && config[LAYERS] > 1) return 1 + FLAGS;
    if ((config[TRAITS] > 0) != (config[HIDDEN] > 0)) return 1 + HIDDEN;
    if (config[TRAITS] && config[WARM_UP]) return 1 + WARM_UP; /* one gate or the other */
    return 0;
}

/* Members are at most 2^22, so no product below leaves 64 bits. */
int32_t refocus_head_sizes(const int64_t *config, struct refocus_sizes *sizes) {
    int32_t wrong = out_of_range(config);
    if (wrong) return wrong;
    int64_t width = config[WIDTH], row = width + config[SIGNATURE], classes = config[CLASSES];
    int64_t blocks = config[LAYERS] * (projection_size(config, 3) + 3 * projection_size(config, 1));
    int64_t traits = config[TRAITS] ? dense_size(config[TRAITS], row) : 0;
    int64_t classifiers = (config[CLASSIFIER] == CLASSIFIER_SHARED ? 1 : 2) * dense_size(classes, width);
    int64_t biases = config[LAYERS] * (projection_outputs(config, 3) + 3 * projection_outputs(config, 1) + 4 * padded(width));
    int64_t scales = config[LAYERS] * (projection_scales(config, 3) + 3 * projection_scales(config, 1));
    int64_t vectors = padded(config[TRAITS]) + (config[CLASSIFIER] == CLASSIFIER_SHARED ? 1 : 2) * padded(classes);
    int64_t gate = config[TRAITS] ? 3 * padded(config[TRAITS]) + (STATISTICS + 2) * padded(config[HIDDEN]) + TILE : 0;
    sizes->floats = biases + vectors + gate;
    sizes->integers = sizes->bytes = 0;
    if (config[PRECISION] == FP32) {
        sizes->floats += blocks + traits + classifiers;
    } else {
        sizes->floats += scales + vectors;
        sizes->integers = blocks + traits + (config[PRECISION] == W16 ? classifiers : 0);
        sizes->bytes = config[PRECISION] == W8 ? classifiers : 0;
    }
    /* In the order in which run.inc takes them. */
    int64_t photos = config[FORM] == FORM_STREAMING ? 1 : config[ROWS] + 1;
    int64_t seen = config[FORM] == FORM_STREAMING ? config[WINDOW] : config[ROWS] + 1;
    int64_t wide = padded(width) + TILE, joint = 3 * width + TILE, together = smaller(photos, 4);
    int64_t tiles = width / config[PARTITIONS] * padded(config[PARTITIONS]);
    int64_t apart = larger(tiles, padded(3 * width / config[PARTITIONS]));
    sizes->scratch = photos * (wide + joint) + together * (2 * wide + apart) + padded(seen) + 4 * padded(classes)
        + 3 * padded(config[TRAITS]) + padded(config[HIDDEN]);
    return 0;
}

int32_t refocus_version(void) { return REFOCUS_NATIVE_VERSION; }

/* ---- arithmetic on single numbers, without a library */

static float square_root(float x) { return x > 0 ? __builtin_sqrtf(x) : x == 0 ? 0 : __builtin_nanf(""); }

/* Natural logarithm; not a number for what is not positive. */
static float logarithm(float value) {
    if (!(value > 0)) return __builtin_nanf("");
    if (value > 3.402823466e38f) return value;
    union { double number; uint64_t bits; } x = {.number = value};
    int64_t exponent = (int64_t)(x.bits >> 52) - 1023;
    x.bits = (x.bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    if (x.number > 1.4142135623730951) {
        x.number *= 0.5;
        exponent++;
    }
    double s = (x.number - 1) / (x.number + 1), q = s * s;
    double series = 1 + q * (1. / 3 + q * (1. / 5 + q * (1. / 7 + q * (1. / 9 + q * (1. / 11 + q / 13)))));
    return (float)(2 * s * series + (double)exponent * 0.6931471805599453);
}

/* ---- variants */

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define INLINE static inline __attribute__((always_inline))
#define CALLED static __attribute__((noinline))

#define LANES 4
#define NAME(function) JOIN(function, baseline)
#include "run.inc"
#undef LANES
#undef NAME

#if defined(__x86_64__)
#define MORE_VARIANTS 1
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define LANES 8
#define NAME(function) JOIN(function, avx2)
#include "run.inc"
#undef LANES
#undef NAME
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#endif
#define LANES 16
#define NAME(function) JOIN(function, avx512)
#include "run.inc"
#undef LANES
#undef NAME
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static void cpuid(uint32_t leaf, uint32_t *out) {
    __asm__ volatile("cpuid" : "=a"(out[0]), "=b"(out[1]), "=c"(out[2]), "=d"(out[3]) : "a"(leaf), "c"(0));
}
#endif

int32_t refocus_variant(void) {
#ifdef MORE_VARIANTS
    uint32_t leaf[4], low, high;
    cpuid(0, leaf);
    if (leaf[0] < 7) return BASELINE;
    cpuid(1, leaf);
    uint32_t needed = 1u << 12 | 1u << 27 | 1u << 28; /* FMA, and that the system saves wide registers, and AVX */
    if ((leaf[2] & needed) != needed) return BASELINE;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    cpuid(7, leaf);
    uint32_t wide = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if ((low & 0xe6) == 0xe6 && (leaf[1] & wide) == wide) return AVX512;
    if ((low & 6) == 6 && leaf[1] & 1u << 5) return AVX2;
#endif
    return BASELINE;
}

const char *refocus_variant_name(int32_t variant) {
#if defined(__aarch64__)
    if (variant == BASELINE) return "neon";
#elif defined(__x86_64__)
    if (variant == BASELINE) return "sse2";
#else
    if (variant == BASELINE) return "portable";
#endif
#ifdef MORE_VARIANTS
    if (variant == AVX2) return "avx2";
    if (variant == AVX512) return "avx512";
#endif
    return "";
}

int32_t refocus_head_run(const struct refocus_head *head, const struct refocus_io *io, float *scratch, int32_t variant) {
    if (variant == BASELINE) run_baseline(head, io, scratch);
#ifdef MORE_VARIANTS
    else if (variant == AVX2) run_avx2(head, io, scratch);
    else if (variant == AVX512) run_avx512(head, io, scratch);
#endif
    else return -1;
    return 0;
}

/* ---- the photo itself */

void refocus_photo_signature(const float *pixels, int64_t side, float *signature) {
    int64_t stride = larger(1, side / 56), points = 0, steps = 0, plane = side * side;
    double sum[3] = {0}, square[3] = {0}, product[3] = {0}, step[3] = {0}, mean[3];
    for (int64_t y = 0; y < side; y += stride)
        for (int64_t x = 0; x < side; x += stride, points++)
            for (int c = 0; c < 3; c++) sum[c] += (double)pixels[c * plane + y * side + x];
    for (int c = 0; c < 3; c++) mean[c] = sum[c] / (double)points;
    for (int64_t y = 0; y < side; y += stride)
        for (int64_t x = 0; x < side; x += stride) {
            const float *at = pixels + y * side + x;
            double r = (double)at[0] - mean[0], g = (double)at[plane] - mean[1], b = (double)at[2 * plane] - mean[2];
            square[0] += r * r, square[1] += g * g, square[2] += b * b;
            product[0] += r * g, product[1] += r * b, product[2] += g * b;
        }
    for (int64_t y = 0; y < side; y += stride)
        for (int64_t x = 0; x + 1 < side; x += stride, steps++)
            for (int c = 0; c < 3; c++) {
                const float *at = pixels + c * plane + y * side + x;
                double off = (double)at[1] - (double)at[0];
                step[c] += off < 0 ? -off : off;
            }
    for (int c = 0; c < 3; c++) {
        signature[c] = (float)mean[c];
        signature[3 + c] = square_root((float)(square[c] / (double)points));
        signature[6 + c] = (float)(product[c] / (double)points);
        signature[9 + c] = (float)(step[c] / (double)steps);
    }
}
