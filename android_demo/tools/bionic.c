/*
 * What Android's C library has and glibc lacks, or lays out otherwise, as far as ONNX Runtime calls it.
 *
 * Built as "libc.so", the name that Android's libraries ask for (glibc's is libc.so.6). Functions that both libraries
 * have, with different arguments, begin with a "B" here: desktop_runtime.py changes the first letter of their names in
 * Android's libraries.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

int __xpg_strerror_r(int code, char *buffer, size_t size);

int *__errno(void) { return __errno_location(); }
size_t __strlen_chk(const char *s, size_t size) { (void)size; return strlen(s); }
char *__gnu_strerror_r(int code, char *buffer, size_t size) { return strerror_r(code, buffer, size); }
int Btrerror_r(int code, char *buffer, size_t size) { return __xpg_strerror_r(code, buffer, size); }
int __system_property_get(const char *name, char *value) { (void)name; *value = 0; return 0; }
void android_set_abort_message(const char *line) { fprintf(stderr, "%s\n", line); }

int __android_log_write(int priority, const char *tag, const char *line) {
    (void)priority;
    return fprintf(stderr, "%s: %s\n", tag, line);
}

int __android_log_vprint(int priority, const char *tag, const char *format, va_list rest) {
    (void)priority, (void)tag;
    return vfprintf(stderr, format, rest);
}

int __android_log_print(int priority, const char *tag, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int written = __android_log_vprint(priority, tag, format, rest);
    va_end(rest);
    return written;
}

/* The numbers are those of bionic's <bits/sysconf.h>. */
long Bysconf(int name) {
    switch (name) {
        case 0x06: return sysconf(_SC_CLK_TCK);
        case 0x27: case 0x28: return sysconf(_SC_PAGESIZE);
        case 0x60: return sysconf(_SC_NPROCESSORS_CONF);
        case 0x61: return sysconf(_SC_NPROCESSORS_ONLN);
        case 0x62: return sysconf(_SC_PHYS_PAGES);
        case 0x63: return sysconf(_SC_AVPHYS_PAGES);
        default: errno = EINVAL; return -1;
    }
}

/* A signal set has 8 bytes there and 128 here. */
int Bigfillset(uint64_t *set) { *set = ~UINT64_C(0); return 0; }

/* The standard streams are places in an array there. Nothing reads from the first. */
char __sF[3][152];

static FILE *stream(void *given) {
    return given == __sF[1] ? stdout : given == __sF[2] ? stderr : given;
}

int Bflush(void *f) { return fflush(stream(f)); }
int Bputc(int c, void *f) { return fputc(c, stream(f)); }
int Bputs(const char *s, void *f) { return fputs(s, stream(f)); }
wint_t Bputwc(wchar_t c, void *f) { return fputwc(c, stream(f)); }
size_t Bwrite(const void *p, size_t size, size_t n, void *f) { return fwrite(p, size, n, stream(f)); }
int Bfprintf(void *f, const char *format, va_list rest) { return vfprintf(stream(f), format, rest); }

int Bprintf(void *f, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    int written = vfprintf(stream(f), format, rest);
    va_end(rest);
    return written;
}

/*
 * Condition variables are aligned to 4 bytes there and to 8 here, thread attributes and mutexes of arm64 are shorter there.
 * So theirs hold a pointer to ours, made at first use; a mutex is only initialised otherwise.
 */
static pthread_cond_t *condition(void *theirs) {
    static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;
    void *ours;
    pthread_mutex_lock(&making);
    memcpy(&ours, theirs, sizeof ours);
    if (!ours) {
        ours = calloc(1, sizeof(pthread_cond_t));
        if (!ours || pthread_cond_init(ours, NULL)) abort();
        memcpy(theirs, &ours, sizeof ours);
    }
    pthread_mutex_unlock(&making);
    return ours;
}

int Bthread_cond_signal(void *c) { return pthread_cond_signal(condition(c)); }
int Bthread_cond_broadcast(void *c) { return pthread_cond_broadcast(condition(c)); }
int Bthread_cond_wait(void *c, pthread_mutex_t *m) { return pthread_cond_wait(condition(c), m); }

int Bthread_cond_timedwait(void *c, pthread_mutex_t *m, const struct timespec *until) {
    return pthread_cond_timedwait(condition(c), m, until);
}

int Bthread_cond_destroy(void *c) {
    pthread_cond_t *ours = condition(c);
    int failed = pthread_cond_destroy(ours);
    free(ours);
    memset(c, 0, sizeof ours);
    return failed;
}

int Bthread_mutex_init(void *theirs, const pthread_mutexattr_t *attributes) {
    pthread_mutex_t ours;
    int failed = pthread_mutex_init(&ours, attributes);
    if (!failed) memcpy(theirs, &ours, 40); /* all that a mutex of glibc uses */
    return failed;
}

int Bthread_attr_init(size_t *stack) { *stack = 0; return 0; }
int Bthread_attr_setstacksize(size_t *stack, size_t size) { *stack = size; return 0; }

int Bthread_create(pthread_t *thread, const size_t *stack, void *(*run)(void *), void *with) {
    pthread_attr_t ours;
    int failed = pthread_attr_init(&ours);
    if (!failed && stack && *stack >= (size_t)PTHREAD_STACK_MIN) failed = pthread_attr_setstacksize(&ours, *stack);
    if (!failed) failed = pthread_create(thread, &ours, run, with);
    return failed;
}
