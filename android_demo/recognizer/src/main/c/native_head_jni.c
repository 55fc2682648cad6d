/* The native head (edge/runtimes/native_head/head.h) for refocus.recognizer.NativeHead, and class shares (shares.h) for
 * refocus.recognizer.ClassShares. All numbers lie in direct buffers that Java allocates and keeps; sizes are checked there,
 * before a pointer is formed here. */
#include <jni.h>
#include <stdlib.h>

#include "head.h"
#include "shares.h"

#define NAME(function) Java_refocus_recognizer_NativeHead_##function
#define SHARES(function) Java_refocus_recognizer_ClassShares_##function

enum { SINGLE = 10 }; /* inputs and outputs of which there is one, in the order of NativeHead.SINGLE */

struct bound {
    struct refocus_head head;
    struct refocus_io io;
    float *scratch;
    int32_t variant;
    float *pointers[]; /* caches, then rows */
};

static void *address_of(JNIEnv *env, jobject buffer) {
    return buffer == NULL ? NULL : (*env)->GetDirectBufferAddress(env, buffer);
}

static void *element(JNIEnv *env, jobjectArray buffers, jsize number) {
    jobject buffer = (*env)->GetObjectArrayElement(env, buffers, number);
    void *address = address_of(env, buffer);
    if (buffer != NULL) (*env)->DeleteLocalRef(env, buffer);
    return address;
}

JNIEXPORT jint JNICALL NAME(version)(JNIEnv *env, jclass owner) {
    (void)env, (void)owner;
    return refocus_version();
}

JNIEXPORT jint JNICALL NAME(variant)(JNIEnv *env, jclass owner) {
    (void)env, (void)owner;
    return refocus_variant();
}

JNIEXPORT jstring JNICALL NAME(variantName)(JNIEnv *env, jclass owner, jint variant) {
    (void)owner;
    return (*env)->NewStringUTF(env, refocus_variant_name(variant));
}

JNIEXPORT jlongArray JNICALL NAME(sizes)(JNIEnv *env, jclass owner, jlongArray config) {
    (void)owner;
    int64_t numbers[CONFIG];
    struct refocus_sizes sizes = {0, 0, 0, 0};
    jlongArray found = (*env)->NewLongArray(env, 5);
    if (found == NULL) return NULL; /* an OutOfMemoryError is pending */
    (*env)->GetLongArrayRegion(env, config, 0, CONFIG, (jlong *)numbers);
    if ((*env)->ExceptionCheck(env)) return NULL; /* of another length */
    jlong wrong = refocus_head_sizes(numbers, &sizes);
    jlong values[5] = {wrong, sizes.floats, sizes.integers, sizes.bytes, sizes.scratch};
    (*env)->SetLongArrayRegion(env, found, 0, 5, values);
    return found;
}

JNIEXPORT jlong JNICALL NAME(address)(JNIEnv *env, jclass owner, jobject buffer) {
    (void)owner;
    return (jlong)(intptr_t)address_of(env, buffer);
}

/* What one head needs for a run, or 0 where memory is short. */
JNIEXPORT jlong JNICALL NAME(bind)(
    JNIEnv *env, jclass owner, jobjectArray weights, jobject scratch, jobjectArray single, jobjectArray caches,
    jobjectArray rows, jint variant) {
    (void)owner;
    jsize count = (*env)->GetArrayLength(env, caches);
    struct bound *made = calloc(1, sizeof *made + 2 * (size_t)count * sizeof(float *));
    if (made == NULL) return 0;
    made->head = (struct refocus_head){
        element(env, weights, 0), element(env, weights, 1), element(env, weights, 2), element(env, weights, 3)};
    made->scratch = address_of(env, scratch);
    made->variant = variant;
    for (jsize number = 0; number < count; number++) {
        made->pointers[number] = element(env, caches, number);
        made->pointers[count + number] = element(env, rows, number);
    }
    void *at[SINGLE];
    for (jsize number = 0; number < SINGLE; number++) at[number] = element(env, single, number);
    made->io = (struct refocus_io){
        .feature = at[0], .length = at[1], .history = at[2], .traits = at[3],
        .plain = at[4], .calibrated = at[5], .logits = at[6], .attention = at[7], .trust = at[8], .trait = at[9],
        .caches = (const float *const *)made->pointers, .rows = made->pointers + count};
    return (jlong)(intptr_t)made;
}

JNIEXPORT jint JNICALL NAME(run)(JNIEnv *env, jclass owner, jlong bound) {
    (void)env, (void)owner;
    struct bound *made = (struct bound *)(intptr_t)bound;
    return refocus_head_run(&made->head, &made->io, made->scratch, made->variant);
}

JNIEXPORT void JNICALL NAME(release)(JNIEnv *env, jclass owner, jlong bound) {
    (void)env, (void)owner;
    free((void *)(intptr_t)bound);
}

/* The state of one person and the place of their answers, in a buffer of Java's. */
struct shares {
    struct refocus_shares state;
    struct refocus_share_answer answer;
};

enum { NUMBERS = 12, VECTORS = 3, MEMORY = 14 }; /* in the order of ClassShares */

JNIEXPORT jint JNICALL SHARES(version)(JNIEnv *env, jclass owner) {
    (void)env, (void)owner;
    return refocus_shares_version();
}

JNIEXPORT jint JNICALL SHARES(size)(JNIEnv *env, jclass owner) {
    (void)env, (void)owner;
    return (jint)sizeof(struct shares);
}

JNIEXPORT void JNICALL SHARES(bind)(
    JNIEnv *env, jclass owner, jobject room, jint classes, jint top, jobjectArray vectors, jdoubleArray numbers,
    jboolean expected, jboolean gated, jboolean vouched, jobjectArray memory) {
    (void)owner;
    struct shares *made = address_of(env, room);
    double n[NUMBERS];
    void *v[VECTORS], *at[MEMORY];
    (*env)->GetDoubleArrayRegion(env, numbers, 0, NUMBERS, n);
    if ((*env)->ExceptionCheck(env)) return; /* of another length */
    for (jsize number = 0; number < VECTORS; number++) v[number] = element(env, vectors, number);
    for (jsize number = 0; number < MEMORY; number++) at[number] = element(env, memory, number);
    made->state = (struct refocus_shares){
        .classes = classes, .top = top, .base = v[0], .scale = v[1], .bias = v[2],
        .temperature = n[0], .strength = n[1], .fade = n[2], .evidence_fade = n[3], .odds = n[4], .penalty = n[5],
        .least = n[6], .most = n[7], .elsewhere = n[8], .support = n[9], .with_head = n[10], .passing = n[11],
        .expected = expected, .gated = gated, .vouched = vouched, .counts = at[0], .sums = at[1]};
    made->answer = (struct refocus_share_answer){
        .outputs = at[2], .logits = at[3], .shared = at[4], .plain = at[5], .shift = at[6], .alone = at[7],
        .shares = at[8], .scratch = at[9], .weights = at[10], .said = at[11], .index = at[12],
        .row = at[13]};
}

/* The memory of the slots. */
JNIEXPORT void JNICALL SHARES(place)(JNIEnv *env, jclass owner, jobject room, jobject index, jobject kept) {
    (void)owner;
    struct shares *made = address_of(env, room);
    made->state.index = address_of(env, index);
    made->state.kept = address_of(env, kept);
}

JNIEXPORT void JNICALL SHARES(fold)(JNIEnv *env, jclass owner, jobject room, jlongArray slots) {
    (void)owner;
    const struct shares *made = address_of(env, room);
    jsize count = (*env)->GetArrayLength(env, slots);
    jlong *found = (*env)->GetLongArrayElements(env, slots, NULL);
    if (found == NULL) return; /* an OutOfMemoryError is pending */
    refocus_shares_fold(&made->state, (const int64_t *)found, count);
    (*env)->ReleaseLongArrayElements(env, slots, found, JNI_ABORT);
}

/* head: logits of a head with a history, or null. */
JNIEXPORT jint JNICALL SHARES(answer)(JNIEnv *env, jclass owner, jobject room, jint photos, jobject head) {
    (void)owner;
    struct shares *made = address_of(env, room);
    made->answer.head = address_of(env, head);
    return refocus_shares_answer(&made->state, photos, &made->answer);
}
