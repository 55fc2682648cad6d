/* Delays fsync and fdatasync by SYNC_DELAY_MS and counts them: slow storage for any process, by LD_PRELOAD. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

static long count;

long counted_syncs(void) { return count; }

static int delayed(const char *name, int descriptor) {
    const char *delay = getenv("SYNC_DELAY_MS");
    long milliseconds = delay ? atol(delay) : 0;
    struct timespec wait = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    count++;
    if (milliseconds) nanosleep(&wait, NULL);
    return ((int (*)(int))dlsym(RTLD_NEXT, name))(descriptor);
}

int fsync(int descriptor) { return delayed("fsync", descriptor); }

int fdatasync(int descriptor) { return delayed("fdatasync", descriptor); }
