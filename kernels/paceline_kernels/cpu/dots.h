/* Products of 32-bit lanes that hold several small numbers each: two of bfloat16, or four bytes.
 *
 * Both operands of a product hold the same inputs in the same lanes: inputs 2i and 2i + 1 of
 * bfloat16, the first in the low half, or inputs 4i to 4i + 3 of bytes. */

#pragma once

#if defined(__AVX512F__) || defined(__AVXVNNI__)
#include <immintrin.h>
#endif

#include "vectors.h"

typedef uint16_t bf16;

/* As many whole numbers as a register of the machine holds. */
typedef int32_t ints
    __attribute__((vector_size(REGISTER_LANES * sizeof(int32_t)), aligned(4), may_alias));

static inline ints load_ints(const void *from)
{
    return *(const ints *)from;
}

static inline void store_ints(void *to, ints lanes)
{
    *(ints *)to = lanes;
}

static inline ints all_ints(int32_t number)
{
    return (ints){0} + number;
}

/* The two or four numbers of one input group, to be met by those of every output. */
static inline int32_t group_of(const void *from)
{
    int32_t group;
    memcpy(&group, from, sizeof group);
    return group;
}

static inline reg as_floats(ints bits)
{
    reg lanes;
    memcpy(&lanes, &bits, sizeof lanes);
    return lanes;
}

static inline ints as_ints(reg lanes)
{
    ints bits;
    memcpy(&bits, &lanes, sizeof bits);
    return bits;
}

/* sums + the products of both bfloat16 of each lane. */
static inline reg dot_bf16(reg sums, ints x, ints weights)
{
#ifdef __AVX512BF16__
    return (reg)_mm512_dpbf16_ps((__m512)sums, (__m512bh)x, (__m512bh)weights);
#else
    const ints high = all_ints((int32_t)0xFFFF0000);
    sums += as_floats(x << 16) * as_floats(weights << 16);
    return sums + as_floats(x & high) * as_floats(weights & high);
#endif
}

/* sums + the products of all four bytes of each lane: weights 0 to 255, x -128 to 127. */
static inline ints dot_bytes(ints sums, ints weights, ints x)
{
#ifdef __AVX512VNNI__
    return (ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)x);
#elif defined(__AVXVNNI__) && !defined(__AVX512F__)
    return (ints)_mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)x);
#else
    for (int shift = 0; shift < 32; shift += 8)
        sums += (weights >> shift & 0xFF) * (x << (24 - shift) >> 24);
    return sums;
#endif
}

static inline float float_of_bf16(bf16 number)
{
    uint32_t bits = (uint32_t)number << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}

/* Round to the nearest, ties to even; not a number stays so. */
static inline bf16 bf16_of(float number)
{
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
    return (bf16)((bits & 0x7FFFFFFF) > 0x7F800000 ? bits >> 16 | 0x40 : rounded);
}

/* A register of numbers, widened. */
static inline reg widen_bf16(const bf16 *from)
{
#ifdef __AVX512F__
    return as_floats((ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from)) << 16);
#else
    reg lanes;
    for (int i = 0; i < REGISTER_LANES; i++)
        lanes[i] = float_of_bf16(from[i]);
    return lanes;
#endif
}

/* A register of numbers, rounded. */
static inline void round_to_bf16(bf16 *to, reg lanes)
{
#ifdef __AVX512BF16__
    _mm256_storeu_si256((void *)to, (__m256i)_mm512_cvtneps_pbh((__m512)lanes));
#else
    for (int i = 0; i < REGISTER_LANES; i++)
        to[i] = bf16_of(lanes[i]);
#endif
}

/* Two registers in the lanes of one: of each pair the first from `low`, the second from `high`. */
static inline ints pair_of(reg low, reg high)
{
#ifdef __AVX512BF16__
    const __m512i order = _mm512_set_epi16(
        31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
        19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
    return (ints)_mm512_permutexvar_epi16(order, both);
#else
    ints pairs;
    for (int i = 0; i < REGISTER_LANES; i++)
        pairs[i] = (int32_t)(bf16_of(low[i]) | (uint32_t)bf16_of(high[i]) << 16);
    return pairs;
#endif
}
