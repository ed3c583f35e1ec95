/* A product whose weight is laid out, ready to run; matmul.c says what each number means. */

#pragma once

#include <stdint.h>

typedef struct {
    const void *packed;
    const float *scales, *bias;
    int64_t outputs, inputs;
    int32_t kind, how;
    const void *panels; /* of a weight in GGUF's blocks: where each panel lies, and of what kind */
    int64_t num_panels;
} product;

/* The kind of a weight in GGUF's blocks, which blocks.c multiplies. */
enum { OF_BLOCKS = -1 };

int block_matmul(const void *x, const uint8_t *packed, const void *panels, const float *bias,
                 void *out, int64_t rows, int64_t outputs, int64_t inputs, int64_t num_panels,
                 int how, int is_bf16, int threads);

/* out [rows, outputs or half of them] from x [rows, inputs]. Returns 0, or 1 without memory. */
int run_product(const product *by, const void *x, void *out, int64_t rows, int is_bf16, int threads);
