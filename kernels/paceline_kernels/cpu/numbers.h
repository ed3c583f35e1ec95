/* Rows of bfloat16 as float32 and back: ops widen a piece, compute in float32, and round. */

#pragma once

#include "dots.h"

/* Numbers that are float32 at a time: they stay in L1. */
#define PIECE 256

static inline int64_t piece_of(int64_t left)
{
    return left < PIECE ? left : PIECE;
}

static inline void widen_row(const bf16 *from, float *to, int64_t size)
{
    for (int64_t i = 0; i < size; i++)
        to[i] = float_of_bf16(from[i]);
}

static inline void round_row(const float *from, bf16 *to, int64_t size)
{
    int64_t i = 0;
    for (; i + REGISTER_LANES <= size; i += REGISTER_LANES)
        round_to_bf16(to + i, load_reg(from + i));
    for (; i < size; i++)
        to[i] = bf16_of(from[i]);
}

/* Numbers of float32 or of bfloat16, from `first` on. */
static inline void widen_either(const void *from, int is_float, int64_t first, float *to,
                                int64_t size)
{
    if (is_float)
        memcpy(to, (const float *)from + first, (size_t)size * sizeof(float));
    else
        widen_row((const bf16 *)from + first, to, size);
}
