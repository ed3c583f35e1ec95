/* A tile: the sums of some rows of x with one panel of a weight, all of them in registers. */

#pragma once

#include "dots.h"

#ifdef __AVX512F__ /* 32 registers: 28 sums, two of the weight, one of x */
#define TILE_ROWS 14
#else /* 16 registers: 12 sums */
#define TILE_ROWS 6
#endif
#define WIDE 2
#define PANEL (WIDE * REGISTER_LANES)

/* What rows and weights are multiplied as. A group of inputs is four bytes of a row: one float, two
 * bfloat16 or four bytes. */
enum product_kind {
    FLOAT32,
    FLOAT32_BY_INT8, /* weights are widened, group by group */
    FLOAT32_BY_FP8,
    BFLOAT16,
    BYTES, /* signed rows with unsigned weights, see byte_tiles.h */
    NUM_KINDS
};
static const int64_t GROUP_INPUTS[NUM_KINDS] = {1, 1, 1, 2, 4};
/* Bytes of a group of one output's weights. */
static const int64_t GROUP_BYTES[NUM_KINDS] = {4, 1, 1, 4, 4};

/* A loop, because GCC widens a vector of bytes by way of its single elements. */
static inline ints widen(const int8_t *from)
{
    int32_t wide[REGISTER_LANES];
    for (int i = 0; i < REGISTER_LANES; i++)
        wide[i] = from[i];
    ints lanes;
    memcpy(&lanes, wide, sizeof lanes);
    return lanes;
}

static inline reg load_int8(const int8_t *from)
{
    return __builtin_convertvector(widen(from), reg);
}

/* E4M3, as paceline_kernels/fp8.py says, without its one NaN: the fields of a float32 in other
 * places, whose exponent counts from 7 instead of from 127. */
static inline reg load_fp8(const int8_t *from)
{
    ints code = widen(from);
    ints bits = (code & INT32_MIN) | (code & 0x7F) << 20;
    reg scaled;
    memcpy(&scaled, &bits, sizeof scaled);
    return scaled * 0x1p120f;
}

/* The sums [rows, PANEL] of rows of x, `stride` bytes apart, with `panel`. Meanwhile memory is asked
 * for: with each group the next `step` bytes from `ahead` on, at most two lines. */
typedef void tile(const void *x, int64_t stride, int64_t groups, const void *panel,
                  const char *ahead, int64_t step, void *out);

#define LOAD_FLOATS(from) load_reg(from)
#define LOAD_GROUPS(from) load_ints(from)
#define TIMES_FLOAT(sums, x, weights) ((sums) + (x) * (weights))
#define TIMES_BFLOAT16(sums, x, weights) dot_bf16(sums, all_ints(x), weights)

/* Five pointers reach 14 rows: row r is the r / 3rd pointer and r % 3 strides on, which one
 * instruction can add. */
#define TILE(NAME, X, LANES_OF, WEIGHT, LOAD, TIMES, ROWS)                                    \
    static void NAME##_##ROWS(const void *x, int64_t stride, int64_t groups, const void *of,       \
                              const char *ahead, int64_t step, void *out)                          \
    {                                                                                              \
        enum { POINTERS = (ROWS + 2) / 3 };                                                        \
        reg rows[ROWS][WIDE];                                                                      \
        const char *at[POINTERS];                                                                  \
        const WEIGHT *panel = of, *end = panel + groups * PANEL;                                   \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) rows[r][c] = (reg){0};          \
        _Pragma("GCC unroll 5") for (int p = 0; p < POINTERS; p++)                                 \
            at[p] = (const char *)x + 3 * p * stride;                                              \
        for (; panel < end; panel += PANEL, ahead += step) {                                       \
            LANES_OF weight[WIDE];                                                                 \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++)                                 \
                weight[c] = LOAD(panel + c * REGISTER_LANES);                                      \
            __builtin_prefetch(ahead, 0, 2);                                                       \
            __builtin_prefetch(ahead + step / 2, 0, 2);                                            \
            _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++) {                              \
                X input;                                                                           \
                memcpy(&input, at[r / 3] + r % 3 * stride, sizeof input);                          \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++)                             \
                    rows[r][c] = TIMES(rows[r][c], input, weight[c]);                              \
            }                                                                                      \
            _Pragma("GCC unroll 5") for (int p = 0; p < POINTERS; p++) {                           \
                at[p] += sizeof(X);                                                                \
                __asm__("" : "+r"(at[p])); /* or the compiler keeps a pointer for each row */      \
            }                                                                                      \
        }                                                                                          \
        memcpy(out, rows, sizeof rows);                                                            \
    }

#define SIX_TILES(...)                                                                             \
    TILE(__VA_ARGS__, 1)                                                                           \
    TILE(__VA_ARGS__, 2)                                                                           \
    TILE(__VA_ARGS__, 3)                                                                           \
    TILE(__VA_ARGS__, 4)                                                                           \
    TILE(__VA_ARGS__, 5)                                                                           \
    TILE(__VA_ARGS__, 6)
#define SIX_NAMES(NAME) NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6
#if TILE_ROWS > 6
#define TALLER_TILES(...)                                                                          \
    TILE(__VA_ARGS__, 7)                                                                           \
    TILE(__VA_ARGS__, 8)                                                                           \
    TILE(__VA_ARGS__, 9)                                                                           \
    TILE(__VA_ARGS__, 10)                                                                          \
    TILE(__VA_ARGS__, 11)                                                                          \
    TILE(__VA_ARGS__, 12)                                                                          \
    TILE(__VA_ARGS__, 13)                                                                          \
    TILE(__VA_ARGS__, 14)
#define TALLER_NAMES(NAME)                                                                         \
    NAME##_7, NAME##_8, NAME##_9, NAME##_10, NAME##_11, NAME##_12, NAME##_13, NAME##_14
#else
#define TALLER_TILES(...)
#define TALLER_NAMES(NAME)
#endif
#define TILES_OF(...) SIX_TILES(__VA_ARGS__) TALLER_TILES(__VA_ARGS__)
#define NAMES_OF(NAME) {0, SIX_NAMES(NAME), TALLER_NAMES(NAME)}

TILES_OF(by_floats, float, reg, float, LOAD_FLOATS, TIMES_FLOAT)
TILES_OF(by_int8, float, reg, int8_t, load_int8, TIMES_FLOAT)
TILES_OF(by_fp8, float, reg, int8_t, load_fp8, TIMES_FLOAT)
TILES_OF(by_bfloat16, int32_t, ints, int32_t, LOAD_GROUPS, TIMES_BFLOAT16)

/* Of every kind but bytes, which byte_tiles.h has. */
static tile *const TILES[NUM_KINDS][TILE_ROWS + 1] = {NAMES_OF(by_floats), NAMES_OF(by_int8),
                                                      NAMES_OF(by_fp8), NAMES_OF(by_bfloat16)};
