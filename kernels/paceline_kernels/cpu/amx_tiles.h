/* The sums of many rows with one panel by tiles of AMX: 32 rows and both halves of a panel at once. */

#pragma once

#include "amx.h"
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

/* Sums [rows, PANEL] of up to 32 rows `stride` bytes apart. The second tile may overlap the first:
 * its rows are the last ones. */
#define BY_TILES(NAME, DOT)                                                                        \
    static void NAME(const char *x, int64_t stride, int64_t rows, int64_t groups,                  \
                     const char *panel, char *sums)                                                \
    {                                                                                              \
        const int64_t line = PANEL * 4;                                                            \
        int64_t second = rows - TILE_SIDE;                                                         \
        tile_zero(0);                                                                              \
        tile_zero(1);                                                                              \
        if (second <= 0) {                                                                         \
            for (int64_t g = 0; g < groups; g += TILE_GROUPS) {                                    \
                tile_load(4, x + g * 4, stride);                                                   \
                tile_load(6, panel + g * line, line);                                              \
                DOT(0, 4, 6);                                                                      \
                tile_load(7, panel + g * line + TILE_LINE, line);                                  \
                DOT(1, 4, 7);                                                                      \
            }                                                                                      \
        } else {                                                                                   \
            tile_zero(2);                                                                          \
            tile_zero(3);                                                                          \
            for (int64_t g = 0; g < groups; g += TILE_GROUPS) {                                    \
                tile_load(4, x + g * 4, stride);                                                   \
                tile_load(6, panel + g * line, line);                                              \
                DOT(0, 4, 6);                                                                      \
                tile_load(7, panel + g * line + TILE_LINE, line);                                  \
                DOT(1, 4, 7);                                                                      \
                tile_load(5, x + second * stride + g * 4, stride);                                 \
                DOT(2, 5, 6);                                                                      \
                DOT(3, 5, 7);                                                                      \
            }                                                                                      \
            tile_store(2, sums + second * line, line);                                             \
            tile_store(3, sums + second * line + TILE_LINE, line);                                 \
        }                                                                                          \
        tile_store(0, sums, line);                                                                 \
        tile_store(1, sums + TILE_LINE, line);                                                     \
    }

BY_TILES(tiles_by_bfloat16, tile_dot_bf16)
BY_TILES(tiles_by_bytes, tile_dot_bytes)

#endif
