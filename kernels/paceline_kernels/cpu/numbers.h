/* Rows of bfloat16 as registers of float32, and what float32 computes for them. */

#pragma once

#include "dots.h"

static inline ints bits_of_reg(reg lanes)
{
    ints bits;
    memcpy(&bits, &lanes, sizeof bits);
    return bits;
}

/* Each lane as the nearest bfloat16 is, ties to even; not a number stays so. */
static inline reg rounded(reg lanes)
{
#ifdef __AVX512BF16__
    __m256i narrow = (__m256i)_mm512_cvtneps_pbh((__m512)lanes);
    return as_floats((ints)_mm512_cvtepu16_epi32(narrow) << 16);
#else
    bf16 narrow[REGISTER_LANES];
    round_to_bf16(narrow, lanes);
    return widen_bf16(narrow);
#endif
}

/* The next numbers of a row of which so many are left, 0 behind its end. */
static inline reg read_row(const bf16 *from, int64_t left)
{
    if (left >= REGISTER_LANES)
        return widen_bf16(from);
    bf16 last[REGISTER_LANES] = {0};
    if (left > 0)
        memcpy(last, from, (size_t)left * sizeof *last);
    return widen_bf16(last);
}

static inline reg read_floats(const float *from, int64_t left)
{
    if (left >= REGISTER_LANES)
        return load_reg(from);
    float last[REGISTER_LANES] = {0};
    if (left > 0)
        memcpy(last, from, (size_t)left * sizeof *last);
    return load_reg(last);
}

/* The same of a row of float32 or of bfloat16, from `first` on. */
static inline reg read_either(const void *from, int is_float, int64_t first, int64_t left)
{
    return is_float ? read_floats((const float *)from + first, left)
                    : read_row((const bf16 *)from + first, left);
}

/* Round the next numbers of a row of which so many are left. */
static inline void write_row(bf16 *to, reg lanes, int64_t left)
{
    if (left >= REGISTER_LANES) {
        round_to_bf16(to, lanes);
        return;
    }
    bf16 last[REGISTER_LANES];
    round_to_bf16(last, lanes);
    if (left > 0)
        memcpy(to, last, (size_t)left * sizeof *last);
}

static inline float total_of(reg lanes)
{
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)lanes);
#else
    float total = lanes[0];
    for (int i = 1; i < REGISTER_LANES; i++)
        total += lanes[i];
    return total;
#endif
}

/* 2^x, within 4 parts of a million; outside of 2^-126 to 2^126 that, nothing or infinity. Not a
 * number stays so. */
static inline reg power_of_two(reg x)
{
#ifdef __AVX512DQ__
    reg r = (reg)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
    x = larger((reg){0} - 126.0f, x);
    x = -larger((reg){0} - 126.0f, -x);
    const float rounding = 0x1.8p23f; /* leaves a whole number in the last bits */
    reg whole = (x - 0.5f) + rounding;
    reg r = x - (whole - rounding);
#endif
    reg p = ((0.01355575f * r + 0.05203237f) * r + 0.24137976f) * r + 0.69303212f;
    p = p * r + 1.0f;
#ifdef __AVX512DQ__
    return (reg)_mm512_scalef_ps((__m512)p, (__m512)x);
#else
    return as_floats(bits_of_reg(p) + (bits_of_reg(whole) << 23));
#endif
}

/* 1 / x of 1 and more, as exactly as bfloat16 can tell. */
static inline reg inverse_of(reg x)
{
#ifdef __AVX512F__
    return (reg)_mm512_rcp14_ps((__m512)x);
#else
    return 1.0f / x;
#endif
}
