/* The sums of many rows with one panel by tiles of AMX: 32 rows and both halves of a panel at once. */

#pragma once

#include "amx.h"
#include "byte_rows.h"
#include "tiles.h"

#ifdef HAS_TILES

enum { TILE_GROUPS = TILE_SIDE }; /* of inputs, in one step */

/* Shape this thread's tiles for `rows` rows, of which 16 count; once before products, for all of
 * them. Tiles 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights. */
static void shape_tiles(int64_t rows)
{
    tile_shapes shapes = {.palette = 1};
    uint8_t height = (uint8_t)(rows < TILE_SIDE ? rows : TILE_SIDE);
    for (int i = 0; i < 8; i++) {
        shapes.line_bytes[i] = TILE_LINE;
        shapes.rows[i] = i < 6 ? height : TILE_SIDE;
    }
    tile_shape(&shapes);
}

/* Dot the groups from `g` on of up to 32 rows `stride` bytes apart with both halves of a panel. The
 * second tile of rows may overlap the first: its rows are the last ones. */
#define DOT_STEP(DOT)                                                                              \
    do {                                                                                           \
        tile_load(4, x + g * 4, stride);                                                           \
        tile_load(6, panel + g * line, line);                                                      \
        DOT(0, 4, 6);                                                                              \
        tile_load(7, panel + g * line + TILE_LINE, line);                                          \
        DOT(1, 4, 7);                                                                              \
        if (second > 0) {                                                                          \
            tile_load(5, x + second * stride + g * 4, stride);                                     \
            DOT(2, 5, 6);                                                                          \
            DOT(3, 5, 7);                                                                          \
        }                                                                                          \
    } while (0)

static inline void zero_sums(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

static inline void store_sums(void *sums, int64_t second)
{
    const int64_t line = PANEL * 4;
    char *to = sums;
    tile_store(0, to, line);
    tile_store(1, to + TILE_LINE, line);
    if (second > 0) {
        tile_store(2, to + second * line, line);
        tile_store(3, to + second * line + TILE_LINE, line);
    }
}

/* The sums [rows, PANEL] of rows in bfloat16. */
static void bfloat16_by_tiles(const char *x, int64_t stride, int64_t rows, int64_t groups,
                              const char *panel, float *sums)
{
    const int64_t line = PANEL * 4, second = rows - TILE_SIDE;
    zero_sums();
    for (int64_t g = 0; g < groups; g += TILE_GROUPS)
        DOT_STEP(tile_dot_bf16);
    store_sums(sums, second);
}

/* The sums [rows, PANEL] of rows in bytes, of which a block is one line of a tile. */
static void bytes_by_tiles(const byte_rows *of, int64_t row, int64_t rows, int64_t groups,
                           const char *panel, float *sums)
{
    const int64_t line = PANEL * 4, second = rows - TILE_SIDE, stride = of->inputs;
    const char *x = of->bytes + row * stride;
    int32_t block[32 * PANEL];
    memset(sums, 0, (size_t)(rows * PANEL) * sizeof *sums);
    for (int64_t g = 0, b = row * of->blocks; g < groups; g += TILE_GROUPS, b++) {
        zero_sums();
        DOT_STEP(tile_dot_bytes);
        store_sums(block, second);
        for (int64_t r = 0; r < rows; r++) {
            int32_t start = of->starts[r * of->blocks + b];
            float scale = of->scales[r * of->blocks + b];
            for (int64_t i = 0; i < PANEL; i++)
                sums[r * PANEL + i] += (float)(block[r * PANEL + i] + start) * scale;
        }
    }
}

#endif
