/* Answers one photo after another from standard input, for processors that are emulated: for each the configuration, the
 * three streams, and the inputs in the order of struct refocus_io; writes the outputs in the same order. */
#include <stdio.h>
#include <stdlib.h>

#include "head.h"

static void *get(int64_t count, size_t size) {
    void *room = malloc((size_t)count * size + 1);
    if (!room || fread(room, size, (size_t)count, stdin) != (size_t)count) exit(2);
    return room;
}

static float *give(int64_t count) {
    float *room = calloc((size_t)count + 1, sizeof(float));
    if (!room) exit(2);
    return room;
}

static void put(const float *numbers, int64_t count) { fwrite(numbers, sizeof(float), (size_t)count, stdout); }

int main(void) {
    int64_t config[CONFIG];
    while (fread(config, sizeof(int64_t), CONFIG, stdin) == CONFIG) {
        struct refocus_sizes sizes;
        if (refocus_head_sizes(config, &sizes)) return 3;
        struct refocus_head head = {.config = config};
        head.floats = get(sizes.floats, 4), head.integers = get(sizes.integers, 2), head.bytes = get(sizes.bytes, 1);
        int64_t row = config[WIDTH] + config[SIGNATURE], rings = config[FORM] == FORM_STREAMING ? 2 * config[LAYERS] : 0;
        int64_t classes = config[CLASSES], seen = rings ? config[WINDOW] : config[ROWS] + 1;
        float **caches = malloc(sizeof(float *) * (size_t)(rings + 1)), **rows = malloc(sizeof(float *) * (size_t)(rings + 1));
        if (!caches || !rows) return 2;
        struct refocus_io io = {.feature = get(row, 4), .length = get(1, 8)};
        if (!rings) io.history = get(config[ROWS] * row, 4);
        for (int64_t ring = 0; ring < rings; ring++)
            caches[ring] = get((config[WINDOW] - 1) * config[WIDTH], 4), rows[ring] = give(config[WIDTH]);
        io.caches = (const float *const *)caches, io.rows = rows;
        io.traits = get(config[ROWS] * config[TRAITS], 4);
        io.plain = give(classes), io.calibrated = give(classes), io.logits = give(classes);
        io.attention = give(seen), io.trust = give(1), io.trait = give(config[TRAITS]);
        if (refocus_head_run(&head, &io, give(sizes.scratch), refocus_variant())) return 4;
        put(io.plain, classes), put(io.calibrated, classes), put(io.logits, classes), put(io.attention, seen);
        put(io.trust, 1);
        for (int64_t ring = 0; ring < rings; ring++) put(rows[ring], config[WIDTH]);
        put(io.trait, config[TRAITS]);
    }
    return 0;
}
