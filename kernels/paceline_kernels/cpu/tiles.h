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

/* What a weight's numbers are kept as. */
enum weight { FLOAT32, INT8, FP8, NUM_WEIGHTS };
static const int64_t WEIGHT_BYTES[NUM_WEIGHTS] = {sizeof(float), 1, 1};


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

/* Of `panel` and `ahead`, the memory that is asked for meanwhile, to the sums [rows, PANEL]. */
typedef void tile(const float *x, int64_t inputs, const void *panel, const void *ahead, float *out);

typedef struct {
    reg sums[WIDE];
} sums;

/* Five pointers reach 14 rows: row r is the r / 3rd pointer and r % 3 strides on, which one
 * instruction can add. */
#define TILE(NAME, WEIGHT, LOAD, ROWS)                                                             \
    static void NAME##_##ROWS(const float *x, int64_t inputs, const void *of, const void *behind,  \
                              float *out)                                                          \
    {                                                                                              \
        enum { POINTERS = (ROWS + 2) / 3 };                                                        \
        sums rows[ROWS];                                                                           \
        const char *at[POINTERS];                                                                  \
        const int64_t stride = inputs * (int64_t)sizeof(float);                                    \
        const WEIGHT *panel = of, *ahead = behind, *end = panel + inputs * PANEL;                  \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) rows[r].sums[c] = (reg){0};     \
        _Pragma("GCC unroll 5") for (int p = 0; p < POINTERS; p++)                                 \
            at[p] = (const char *)(x + 3 * p * inputs);                                            \
        for (; panel < end; panel += PANEL, ahead += PANEL) {                                      \
            reg weight[WIDE];                                                                      \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) {                               \
                weight[c] = LOAD(panel + c * REGISTER_LANES);                                      \
                __builtin_prefetch(ahead + c * REGISTER_LANES, 0, 2);                              \
            }                                                                                      \
            _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++) {                              \
                const float input = *(const float *)(at[r / 3] + r % 3 * stride);                  \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++)                             \
                    rows[r].sums[c] += input * weight[c];                                          \
            }                                                                                      \
            _Pragma("GCC unroll 5") for (int p = 0; p < POINTERS; p++) {                           \
                at[p] += sizeof(float);                                                            \
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

TILES_OF(of_floats, float, load_reg)
TILES_OF(of_int8, int8_t, load_int8)
TILES_OF(of_fp8, int8_t, load_fp8)

static tile *const TILES[NUM_WEIGHTS][TILE_ROWS + 1] = {
    NAMES_OF(of_floats), NAMES_OF(of_int8), NAMES_OF(of_fp8)};
