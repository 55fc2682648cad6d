/* The native head (edge/runtimes/native_head/head.h) for refocus.recognizer.NativeHead. All numbers lie in direct buffers
 * that Java allocates and keeps; sizes are checked there, before a pointer is formed here. */
#include <jni.h>
#include <stdlib.h>

#include "head.h"

#define NAME(function) Java_refocus_recognizer_NativeHead_##function

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
