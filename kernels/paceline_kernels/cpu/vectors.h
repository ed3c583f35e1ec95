/* Vectors of LANES floats, and what every op here does with them. */

#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
/* Below this many numbers, waking the other threads takes longer than the work. */
#define WORTH_A_TEAM 16384

#define TEAM(numbers) if ((numbers) >= WORTH_A_TEAM) num_threads(threads)

/* Compilers cut it into what the machine has: one register of AVX512, two of AVX2, four of NEON. */
typedef float vec __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

/* What one register of the machine holds: for loops that have to keep their sums in registers. */
#ifdef __AVX512F__
#define REGISTER_LANES 16
#elif defined(__AVX__)
#define REGISTER_LANES 8
#else
#define REGISTER_LANES 4
#endif
typedef float reg
    __attribute__((vector_size(REGISTER_LANES * sizeof(float)), aligned(4), may_alias));

static inline reg load_reg(const float *from)
{
    return *(const reg *)from;
}

static inline vec load(const float *from)
{
    return *(const vec *)from;
}

static inline void store_reg(float *to, reg lanes)
{
    *(reg *)to = lanes;
}

static inline void store(float *to, vec lanes)
{
    *(vec *)to = lanes;
}

/* The larger of each lane; b where one is not a number. */
static inline reg larger(reg a, reg b)
{
#ifdef __AVX512F__
    return (reg)_mm512_max_ps((__m512)a, (__m512)b);
#else
    for (int i = 0; i < REGISTER_LANES; i++)
        b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
#endif
}

static inline float sum_of(vec lanes)
{
    typedef float half __attribute__((vector_size(LANES / 2 * sizeof(float))));
    typedef float quarter __attribute__((vector_size(LANES / 4 * sizeof(float))));
    half halves[2];
    quarter quarters[2];
    memcpy(halves, &lanes, sizeof halves);
    half eight = halves[0] + halves[1];
    memcpy(quarters, &eight, sizeof quarters);
    quarter four = quarters[0] + quarters[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

/* e^x within 2 units in the last place: 2^n by the exponent's bits, the rest by Taylor's series.
 * Not a number stays so; below -87 it is e^-87, which is nothing beside any other weight. */
static inline float exp_of(float x)
{
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    float n = nearbyintf(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}
