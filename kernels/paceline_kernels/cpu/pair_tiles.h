/* Sums in registers for attention over pairs of bfloat16, and the weights of scores. */

#pragma once

#include "numbers.h"
#include "ops.h"

#define KEYS LANES                   /* of a piece */
#define PAIRS (2 * KEYS)             /* keys of a register of weights, on the widest machine */
#define CHUNK 512                    /* keys that are weighed at a time */
#define PIECES (CHUNK / KEYS)
#define LINE (MAX_HEAD + 2 * KEYS)   /* from line to line: no power of two, which caches dislike */
#define LINES 32                     /* MAX_GROUP in native.py */
#define AHEAD 4                      /* pieces that are asked for before they are read */
#define NEAR_BYTES 32768             /* of values that stay in L1 while lines pass over them */

#ifdef __AVX512F__ /* 32 registers: sums of 14 lines with two registers, or of 6 with four */
#define TALL 14
#define FLAT 6
#define FLAT_WIDE 4
#define TALL_WIDE 2
#else /* 16 registers: sums of 4 lines with two */
#define TALL 4
#define FLAT 4
#define FLAT_WIDE 2
#define TALL_WIDE 2
#endif

/* Sums of ROWS lines with WIDE registers over `groups` pairs: a [ROWS, LINE], from[c] and on
 * `stride` bytes the registers of column c. What lies at ahead[c] and on is asked for meanwhile:
 * blocks lie anywhere, so no prefetcher guesses them. */
static inline __attribute__((always_inline)) void
multiply(reg *sums, const int rows, const int wide, const bf16 *a, const char *const *from,
         const char *const *ahead, int64_t stride, int64_t groups)
{
    for (int64_t at = 0; at < groups * stride; at += stride, a += 2) {
        ints columns[FLAT_WIDE];
        _Pragma("GCC unroll 4") for (int c = 0; c < wide; c++) {
            columns[c] = load_ints(from[c] + at);
            __builtin_prefetch(ahead[c] + at);
        }
        _Pragma("GCC unroll 14") for (int r = 0; r < rows; r++) {
            ints pair = all_ints(group_of(a + r * LINE));
            _Pragma("GCC unroll 4") for (int c = 0; c < wide; c++)
                sums[r * wide + c] = dot_bf16(sums[r * wide + c], pair, columns[c]);
        }
    }
}

/* scores [ROWS, LINE] of WIDE registers of keys. */
typedef void score(const bf16 *q, const char *const *keys, const char *const *ahead, int64_t stride,
                   int64_t groups, float *scores);
/* sums [ROWS, LINE] *= factors, += weights [ROWS, LINE] x the values of `pieces`, `first` bytes on,
 * for WIDE registers of the head. */
typedef void add(const bf16 *weights, const char *const *pieces, int64_t count, int64_t first,
                 int64_t stride, const float *factors, float *sums);

#define TILE(ROWS, WIDE)                                                                           \
    static void score_##ROWS(const bf16 *q, const char *const *keys, const char *const *ahead,     \
                             int64_t stride, int64_t groups, float *scores)                        \
    {                                                                                              \
        reg sums[ROWS * WIDE];                                                                     \
        _Pragma("GCC unroll 28") for (int i = 0; i < ROWS * WIDE; i++) sums[i] = (reg){0};         \
        multiply(sums, ROWS, WIDE, q, keys, ahead, stride, groups);                                \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDE; c++)                                 \
                store_reg(scores + r * LINE + c * REGISTER_LANES, sums[r * WIDE + c]);             \
    }

#define ADD(NAME, ROWS, WIDE)                                                                      \
    static void NAME##_##ROWS(const bf16 *weights, const char *const *pieces, int64_t count,       \
                              int64_t first, int64_t stride, const float *factors, float *to)      \
    {                                                                                              \
        reg sums[ROWS * WIDE];                                                                     \
        _Pragma("GCC unroll 28") for (int i = 0; i < ROWS * WIDE; i++) sums[i] = (reg){0};         \
        for (int64_t i = 0; i < count; i++, weights += KEYS) {                                     \
            const char *from[WIDE], *ahead[WIDE];                                                  \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDE; c++) {                               \
                from[c] = pieces[i] + first + c * sizeof(reg);                                     \
                ahead[c] = pieces[i + AHEAD] + first + c * sizeof(reg);                            \
            }                                                                                      \
            multiply(sums, ROWS, WIDE, weights, from, ahead, stride, KEYS / 2);                    \
        }                                                                                          \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDE; c++) {                               \
                float *at = to + r * LINE + c * REGISTER_LANES;                                    \
                store_reg(at, load_reg(at) * factors[r] + sums[r * WIDE + c]);                     \
            }                                                                                      \
    }

#define TILES_OF(ROWS, WIDE) TILE(ROWS, WIDE) ADD(add_wide, ROWS, WIDE) ADD(add_narrow, ROWS, 1)
TILES_OF(1, FLAT_WIDE)
TILES_OF(2, FLAT_WIDE)
TILES_OF(3, FLAT_WIDE)
TILES_OF(4, FLAT_WIDE)
#if TALL > FLAT
TILES_OF(5, FLAT_WIDE)
TILES_OF(6, FLAT_WIDE)
TILES_OF(8, TALL_WIDE)
TILES_OF(11, TALL_WIDE)
TILES_OF(14, TALL_WIDE)
#define BY_ROWS(NAME)                                                                              \
    {0, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_8, NAME##_8,            \
     NAME##_11, NAME##_11, NAME##_11, NAME##_14, NAME##_14, NAME##_14}
#else
#define BY_ROWS(NAME) {0, NAME##_1, NAME##_2, NAME##_3, NAME##_4}
#endif

static score *const SCORE[TALL + 1] = BY_ROWS(score);
static add *const ADD_WIDE[TALL + 1] = BY_ROWS(add_wide);
static add *const ADD_NARROW[TALL + 1] = BY_ROWS(add_narrow);

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t wide_of(int64_t rows)
{
    return rows > FLAT ? TALL_WIDE : FLAT_WIDE;
}

static inline float largest_of(reg lanes)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)lanes);
#else
    float largest = lanes[0];
    for (int i = 1; i < REGISTER_LANES; i++)
        largest = lanes[i] > largest ? lanes[i] : largest;
    return largest;
#endif
}

/* Two registers, rounded, one behind the other. */
static inline ints row_of(reg low, reg high)
{
#ifdef __AVX512BF16__
    return (ints)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    bf16 row[2 * REGISTER_LANES];
    round_to_bf16(row, low);
    round_to_bf16(row + REGISTER_LANES, high);
    return load_ints(row);
#endif
}
