/* A product whose weight is laid out, ready to run; matmul.c says what each number means. */

#pragma once

#include <stdint.h>

typedef struct {
    const void *packed;
    const float *scales, *bias;
    int64_t outputs, inputs;
    int32_t kind, how;
} product;

/* out [rows, outputs or half of them] from x [rows, inputs]. Returns 0, or 1 without memory. */
int run_product(const product *by, const void *x, void *out, int64_t rows, int is_bf16, int threads);
