/* Tiles of AMX: 16 rows of 64 bytes, eight of them, and the product of two.
 *
 * C [rows, 16] += A [rows, 16 groups] x B [16 groups, 16], a group being two bfloat16 or four
 * bytes. A machine without AMX can compute the same in plain C, which tests do: the order of the
 * sums is that of Intel's manual (TDPBF16PS: even and odd inputs apart, then together). That
 * machine needs AVX-512, as every machine with AMX has: only there two tiles are as wide as a panel. */

#pragma once

#include <stdint.h>
#include <string.h>

#include "dots.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) &&                     \
    !defined(EMULATE_TILES)
#define HAS_TILES
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(EMULATE_TILES) && defined(__AVX512F__)
#define HAS_TILES
#endif

#ifdef HAS_TILES

enum { TILE_SIDE = 16, TILE_LINE = 64 }; /* rows, and groups or sums in a row; bytes of a row */

typedef struct {
    uint8_t palette, start_row, unused[14];
    uint16_t line_bytes[16];
    uint8_t rows[16];
} __attribute__((packed)) tile_shapes;

#ifndef EMULATE_TILES

#define tile_shape(shapes) _tile_loadconfig(shapes)
#define tile_free() _tile_release()
#define tile_zero(number) _tile_zero(number)
#define tile_load(number, from, stride) _tile_loadd(number, from, stride)
#define tile_store(number, to, stride) _tile_stored(number, to, stride)
#define tile_dot_bf16(c, a, b) _tile_dpbf16ps(c, a, b)
/* Signed x with unsigned weights. */
#define tile_dot_bytes(c, a, b) _tile_dpbsud(c, a, b)

/* Ask Linux for the tiles' state, once in a process; whether it agreed. */
static inline int may_use_tiles(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

#else

static _Thread_local struct {
    tile_shapes shapes;
    int32_t tiles[8][TILE_SIDE][TILE_SIDE];
} emulated;

static inline int may_use_tiles(void)
{
    return 1;
}

static inline void tile_shape(const void *shapes)
{
    memset(&emulated, 0, sizeof emulated);
    memcpy(&emulated.shapes, shapes, sizeof emulated.shapes);
}

static inline void tile_free(void)
{
    memset(&emulated, 0xFF, sizeof emulated); /* not a number, for whoever reads it */
}

static inline void tile_zero(int number)
{
    memset(emulated.tiles[number], 0, sizeof emulated.tiles[number]);
}

static inline void tile_load(int number, const void *from, int64_t stride)
{
    tile_zero(number);
    for (int row = 0; row < emulated.shapes.rows[number]; row++)
        memcpy(emulated.tiles[number][row], (const char *)from + row * stride,
               emulated.shapes.line_bytes[number]);
}

static inline void tile_store(int number, void *to, int64_t stride)
{
    for (int row = 0; row < emulated.shapes.rows[number]; row++)
        memcpy((char *)to + row * stride, emulated.tiles[number][row],
               emulated.shapes.line_bytes[number]);
}

static inline void tile_dot_bf16(int c, int a, int b)
{
    int groups = emulated.shapes.line_bytes[a] / 4, lanes = emulated.shapes.line_bytes[c] / 4;
    for (int row = 0; row < emulated.shapes.rows[c]; row++)
        for (int lane = 0; lane < lanes; lane++) {
            float even = 0.0f, odd = 0.0f, sum;
            for (int g = 0; g < groups; g++) {
                bf16 x[2], w[2];
                memcpy(x, &emulated.tiles[a][row][g], sizeof x);
                memcpy(w, &emulated.tiles[b][g][lane], sizeof w);
                even += float_of_bf16(x[0]) * float_of_bf16(w[0]);
                odd += float_of_bf16(x[1]) * float_of_bf16(w[1]);
            }
            memcpy(&sum, &emulated.tiles[c][row][lane], sizeof sum);
            sum += even + odd;
            memcpy(&emulated.tiles[c][row][lane], &sum, sizeof sum);
        }
}

static inline void tile_dot_bytes(int c, int a, int b)
{
    int groups = emulated.shapes.line_bytes[a] / 4, lanes = emulated.shapes.line_bytes[c] / 4;
    for (int row = 0; row < emulated.shapes.rows[c]; row++)
        for (int lane = 0; lane < lanes; lane++)
            for (int g = 0; g < groups; g++) {
                int8_t x[4];
                uint8_t w[4];
                memcpy(x, &emulated.tiles[a][row][g], sizeof x);
                memcpy(w, &emulated.tiles[b][g][lane], sizeof w);
                for (int i = 0; i < 4; i++)
                    emulated.tiles[c][row][lane] += x[i] * w[i];
            }
}

#endif
#endif
