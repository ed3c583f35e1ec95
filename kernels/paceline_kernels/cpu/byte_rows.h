/* Rows brought to signed bytes, block by block of inputs: the largest number of a block becomes 127 or
 * -127. A block with a number that is not finite gets a scale that is not a number. */

#pragma once

#include <math.h>

#include "dots.h"

/* Inputs that share a scale: one line of a tile of AMX. With one scale for a whole row the embedded
 * model's next token is 0.043 nats from float32's, with blocks of 64 it is 0.011, of 32 0.009. */
#define BLOCK_INPUTS 64
#define BLOCK_GROUPS (BLOCK_INPUTS / 4)

typedef struct {
    const char *bytes; /* [rows, inputs] */
    const float *scales; /* [rows, blocks]: by which the bytes are multiplied */
    const int32_t *starts; /* [rows, blocks]: where sums with unsigned weights start */
    int64_t inputs, blocks;
} byte_rows;

/* Weights are unsigned: 128 more than they mean, which this takes away again. */
static inline int32_t start_of(int32_t sum)
{
    return -128 * sum;
}

static inline int32_t bits_of_float(float number)
{
    int32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return bits;
}

/* Two bits of a float32 above its last whole number: what is added to it is rounded to whole. */
#define ROUNDS_TO_WHOLE 12582912.0f

#define QUANTIZE(NAME, FROM, LOAD, WIDEN)                                                          \
    static void NAME(const FROM *from, int64_t size, int8_t *bytes, float *scale, int32_t *start)  \
    {                                                                                              \
        typedef int8_t narrow __attribute__((vector_size(REGISTER_LANES), aligned(1), may_alias)); \
        const ints magnitude = all_ints(0x7FFFFFFF), infinite = all_ints(0x7F800000);              \
        ints most = {0}, sums = {0};                                                               \
        int32_t largest_bits = 0, sum = 0;                                                         \
        int64_t whole = size / REGISTER_LANES * REGISTER_LANES;                                    \
        for (int64_t i = 0; i < whole; i += REGISTER_LANES) {                                      \
            /* Positive floats are ordered as their bits, what is no number above all of them. */  \
            ints bits = as_ints(LOAD(from + i)) & magnitude;                                       \
            ints is_more = bits > most;                                                            \
            most = (bits & is_more) | (most & ~is_more);                                           \
        }                                                                                          \
        for (int i = 0; i < REGISTER_LANES; i++)                                                   \
            largest_bits = most[i] > largest_bits ? most[i] : largest_bits;                        \
        for (int64_t i = whole; i < size; i++) {                                                   \
            int32_t bits = bits_of_float(fabsf(WIDEN(from[i])));                              \
            largest_bits = bits > largest_bits ? bits : largest_bits;                              \
        }                                                                                          \
        int is_finite = largest_bits < infinite[0];                                                \
        ints finite = all_ints(-is_finite);                                                        \
        float largest;                                                                             \
        memcpy(&largest, &largest_bits, sizeof largest);                                           \
        float inverse = largest > 1e-30f && is_finite ? 127.0f / largest : 0.0f;                   \
        for (int64_t i = 0; i < whole; i += REGISTER_LANES) {                                      \
            reg rounded = as_floats(finite & as_ints(LOAD(from + i))) * inverse + ROUNDS_TO_WHOLE;     \
            ints numbers = as_ints(rounded) - bits_of_float(ROUNDS_TO_WHOLE);                                        \
            sums += numbers;                                                                       \
            *(narrow *)(bytes + i) = __builtin_convertvector(numbers, narrow);                     \
        }                                                                                          \
        for (int i = 0; i < REGISTER_LANES; i++)                                                   \
            sum += sums[i];                                                                        \
        for (int64_t i = whole; i < size; i++) {                                                   \
            float rounded = (is_finite ? WIDEN(from[i]) : 0.0f) * inverse + ROUNDS_TO_WHOLE;       \
            bytes[i] = (int8_t)(bits_of_float(rounded) - bits_of_float(ROUNDS_TO_WHOLE));         \
            sum += bytes[i];                                                                       \
        }                                                                                          \
        *scale = is_finite ? largest / 127.0f : NAN;                                               \
        *start = start_of(sum);                                                                    \
    }

QUANTIZE(bytes_of_floats, float, load_reg, )
QUANTIZE(bytes_of_bfloat16, bf16, widen_bf16, float_of_bf16)
