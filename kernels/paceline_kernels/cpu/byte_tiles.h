/* Tiles of rows in bytes: whole numbers are summed within a block of inputs, floats over blocks. */

#pragma once

#include "byte_rows.h"
#include "tiles.h"

#ifdef __AVX512F__ /* 32 registers: 14 sums of each sort, two of the weight */
#define BYTE_TILE_ROWS 7
#else /* 16 registers: 6 sums of each sort */
#define BYTE_TILE_ROWS 3
#endif

/* The sums [rows, PANEL] from `row` on; `ahead` and `step` as for a `tile`. */
typedef void byte_tile(const byte_rows *x, int64_t row, int64_t groups, const char *panel,
                       const char *ahead, int64_t step, float *out);

#define BYTE_TILE(ROWS)                                                                            \
    static void bytes_##ROWS(const byte_rows *x, int64_t row, int64_t groups, const char *panel,   \
                             const char *ahead, int64_t step, float *out)                          \
    {                                                                                              \
        reg floats[ROWS][WIDE];                                                                    \
        const char *at = x->bytes + row * x->inputs;                                               \
        const float *scales = x->scales + row * x->blocks;                                         \
        const int32_t *starts = x->starts + row * x->blocks;                                       \
        const int64_t stride = x->inputs, blocks = x->blocks;                                      \
        _Pragma("GCC unroll 7") for (int r = 0; r < ROWS; r++)                                     \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) floats[r][c] = (reg){0};        \
        for (int64_t block = 0; block < blocks; block++) {                                         \
            ints sums[ROWS][WIDE];                                                                 \
            int64_t left = groups - block * BLOCK_GROUPS;                                          \
            const char *end = panel + (left < BLOCK_GROUPS ? left : BLOCK_GROUPS) * PANEL * 4;     \
            _Pragma("GCC unroll 7") for (int r = 0; r < ROWS; r++)                                 \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) sums[r][c] =                \
                    all_ints(starts[r * blocks + block]);                                          \
            for (; panel < end; panel += PANEL * 4, at += 4, ahead += step) {                      \
                ints weight[WIDE];                                                                 \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++)                             \
                    weight[c] = load_ints(panel + c * REGISTER_LANES * 4);                         \
                __builtin_prefetch(ahead, 0, 2);                                                   \
                __builtin_prefetch(ahead + step / 2, 0, 2);                                        \
                _Pragma("GCC unroll 7") for (int r = 0; r < ROWS; r++) {                           \
                    int32_t group = group_of(at + r * stride);                                     \
                    _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++)                         \
                        sums[r][c] = dot_bytes(sums[r][c], weight[c], all_ints(group));            \
                }                                                                                  \
            }                                                                                      \
            _Pragma("GCC unroll 7") for (int r = 0; r < ROWS; r++)                                 \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++)                             \
                    floats[r][c] += __builtin_convertvector(sums[r][c], reg) *                     \
                                    scales[r * blocks + block];                                    \
        }                                                                                          \
        memcpy(out, floats, sizeof floats);                                                        \
    }

BYTE_TILE(1)
BYTE_TILE(2)
BYTE_TILE(3)
#if BYTE_TILE_ROWS > 3
BYTE_TILE(4)
BYTE_TILE(5)
BYTE_TILE(6)
BYTE_TILE(7)
static byte_tile *const BYTE_TILES[] = {0, bytes_1, bytes_2, bytes_3, bytes_4, bytes_5, bytes_6,
                                        bytes_7};
#else
static byte_tile *const BYTE_TILES[] = {0, bytes_1, bytes_2, bytes_3};
#endif
