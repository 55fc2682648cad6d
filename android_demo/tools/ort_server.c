/*
 * Runs one ONNX program as often as it is asked to: a process that emulate.py talks to, on an emulated processor.
 *
 * Arguments: the program's file, then session entries as KEY=VALUE. The first answer, before any question, tells whether
 * the program was loaded. Questions and answers are numbers in the byte order of the machine:
 *   question: int32 inputs, each (int32 length, name, int32 type, int32 axes, int64 sizes, bytes),
 *             int32 outputs, each (int32 length, name); outputs are float32
 *   answer:   int32 length of an error, its text; where that is 0, each output as (int64 bytes, bytes)
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxruntime_c_api.h"

#define MOST 64

/* Android keeps the stack's guard 40 bytes from the thread pointer. Here that is inside the program's first thread-local
   variable, which nothing may change. */
static _Thread_local volatile char guard[64];

static const OrtApi *ort;

static void answer(OrtStatus *status) {
    const char *text = status ? ort->GetErrorMessage(status) : "";
    int32_t length = (int32_t)strlen(text);
    fwrite(&length, sizeof length, 1, stdout);
    fwrite(text, 1, (size_t)length, stdout);
    if (status) ort->ReleaseStatus(status);
}

static void must_read(void *to, size_t size) {
    if (size && fread(to, 1, size, stdin) != size) exit(2);
}

static int32_t number(void) {
    int32_t found;
    must_read(&found, sizeof found);
    return found;
}

static char *name(void) {
    int32_t length = number();
    char *found = calloc(1, (size_t)length + 1);
    must_read(found, (size_t)length);
    return found;
}

static OrtStatus *tensor(const OrtMemoryInfo *memory, OrtValue **made, void **data) {
    int32_t type = number(), axes = number();
    int64_t sizes[8], count = 1;
    if (axes > 8) exit(2);
    must_read(sizes, sizeof *sizes * (size_t)axes);
    for (int32_t i = 0; i < axes; i++) count *= sizes[i];
    size_t bytes = (size_t)count * (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4);
    *data = malloc(bytes + 1);
    must_read(*data, bytes);
    return ort->CreateTensorWithDataAsOrtValue(memory, *data, bytes, sizes, (size_t)axes, (ONNXTensorElementDataType)type,
                                               made);
}

static OrtStatus *write_output(OrtValue *value) {
    OrtTensorTypeAndShapeInfo *shape;
    size_t count;
    void *data;
    OrtStatus *status = ort->GetTensorTypeAndShape(value, &shape);
    if (status || (status = ort->GetTensorShapeElementCount(shape, &count))) return status;
    ort->ReleaseTensorTypeAndShapeInfo(shape);
    if ((status = ort->GetTensorMutableData(value, &data))) return status;
    int64_t bytes = (int64_t)(count * sizeof(float));
    fwrite(&bytes, sizeof bytes, 1, stdout);
    fwrite(data, 1, (size_t)bytes, stdout);
    return NULL;
}

/* One question; 0 at the end of the input. */
static int serve(OrtSession *session, const OrtMemoryInfo *memory) {
    int32_t inputs, outputs;
    char *in[MOST], *out[MOST];
    void *data[MOST];
    OrtValue *given[MOST], *made[MOST] = {NULL};
    OrtStatus *status = NULL;
    if (fread(&inputs, sizeof inputs, 1, stdin) != 1) return 0;
    if (inputs > MOST) exit(2);
    for (int32_t i = 0; i < inputs; i++) {
        in[i] = name();
        OrtStatus *failed = tensor(memory, &given[i], &data[i]);
        if (failed) status = failed;
    }
    if ((outputs = number()) > MOST) exit(2);
    for (int32_t i = 0; i < outputs; i++) out[i] = name();
    if (!status)
        status = ort->Run(session, NULL, (const char *const *)in, (const OrtValue *const *)given, (size_t)inputs,
                          (const char *const *)out, (size_t)outputs, made);
    int failed = status != NULL;
    answer(status);
    for (int32_t i = 0; !failed && i < outputs; i++)
        if (write_output(made[i])) exit(3);
    fflush(stdout);
    for (int32_t i = 0; i < outputs; free(out[i++]))
        if (made[i]) ort->ReleaseValue(made[i]);
    for (int32_t i = 0; i < inputs; free(in[i]), free(data[i++])) ort->ReleaseValue(given[i]);
    return 1;
}

static OrtStatus *load(char **arguments, OrtSession **session, OrtMemoryInfo **memory) {
    OrtEnv *env;
    OrtSessionOptions *options;
    OrtStatus *status = ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "server", &env);
    if (status || (status = ort->CreateSessionOptions(&options))) return status;
    if ((status = ort->SetIntraOpNumThreads(options, 1))) return status;
    for (char **entry = arguments + 2; *entry; entry++) {
        char *value = strchr(*entry, '=');
        if (!value) exit(2);
        *value++ = 0;
        if ((status = ort->AddSessionConfigEntry(options, *entry, value))) return status;
    }
    if ((status = ort->CreateSession(env, arguments[1], options, session))) return status;
    return ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, memory);
}

int main(int count, char **arguments) {
    OrtSession *session = NULL;
    OrtMemoryInfo *memory = NULL;
    void *library = dlopen("libonnxruntime.so", RTLD_NOW);
    if (!library || count < 2) {
        fprintf(stderr, "%s\n", library ? "no program was named" : dlerror());
        return 2;
    }
    const OrtApiBase *(*base)(void) = (const OrtApiBase *(*)(void))dlsym(library, "OrtGetApiBase");
    ort = base()->GetApi(ORT_API_VERSION);
    if (!ort || guard[0]) return 2;
    OrtStatus *status = load(arguments, &session, &memory);
    int failed = status != NULL;
    answer(status);
    fflush(stdout);
    while (!failed && serve(session, memory)) {
    }
    return failed;
}
