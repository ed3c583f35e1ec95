/* x W^T with the weight in panels, by registers or by tiles of AMX. See README.md.
 *
 * A panel is PANEL outputs wide, its groups of inputs one after the other: every row of x that meets
 * it reads it front to back. A tile of rows keeps its sums from the first group to the last, so each
 * sum is one chain in the order of the inputs, whatever other rows are in the batch. */

#include <stdlib.h>

#include "amx_tiles.h"
#include "byte_tiles.h"
#include "products.h"
#include "tiles.h"

/* Rows that are worked on together: half of a core's L2, so that a panel finds them there. */
#define BLOCK_BYTES (384 << 10)
/* Panels ahead that memory is asked for: the next one is the other thread's. */
#define AHEAD 2
/* Below this many products, waking the other threads takes longer than the work. */
#define WORTH_A_TEAM_OF_PRODUCTS (1 << 18)

enum epilogue { PLAIN, GATED_BY_SILU, GATED_BY_GELU };

int64_t panel_width(void)
{
    return PANEL;
}

/* Whether products of bytes are one instruction: else weights of a byte are better widened. */
int has_byte_products(void)
{
#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
    return 1;
#else
    return 0;
#endif
}

int has_bfloat16_products(void)
{
#ifdef __AVX512BF16__
    return 1;
#else
    return 0;
#endif
}

/* Whether the library was built for tiles and Linux lets this process use them. */
int has_tile_products(void)
{
#ifdef HAS_TILES
    static int is_allowed = -1;
    if (is_allowed < 0)
        is_allowed = may_use_tiles();
    return is_allowed;
#else
    return 0;
#endif
}

static inline float gated(float gate, float value, enum epilogue how)
{
    float z = how == GATED_BY_SILU
                  ? gate
                  : 1.59576912f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exp_of(-z)) * value;
}

typedef struct {
    const char *x; /* rows, `stride` bytes apart */
    int64_t stride, groups;
    const char *packed;
    int64_t panel_bytes, panels;
    byte_rows bytes; /* x of the kind BYTES */
    const float *scales, *bias;
    void *out; /* [rows, width] */
    int64_t outputs, width;
    enum product_kind kind;
    enum epilogue how;
    int is_bf16; /* what is written */
    int by_tiles;
} running;

static inline void write_lanes(const running *of, int64_t row, int64_t column, reg lanes)
{
    int64_t at = row * of->width + column;
    int64_t left = of->width - column;
    if (left >= REGISTER_LANES) {
        if (of->is_bf16)
            round_to_bf16((bf16 *)of->out + at, lanes);
        else
            store_reg((float *)of->out + at, lanes);
        return;
    }
    for (int64_t i = 0; i < left; i++)
        if (of->is_bf16)
            ((bf16 *)of->out)[at + i] = bf16_of(lanes[i]);
        else
            ((float *)of->out)[at + i] = lanes[i];
}

/* Scale, add to, gate and write the sums [count, PANEL] of some rows with one panel. */
static void finish(const running *of, int64_t first, int64_t count, int64_t panel, float *sums)
{
    int64_t column = panel * PANEL;
    if (of->scales)
        for (int64_t r = 0; r < count; r++)
            for (int64_t i = 0; i < PANEL; i++)
                sums[r * PANEL + i] *= of->scales[column + i];
    if (of->how != PLAIN) {
        for (int64_t r = 0; r < count; r++) {
            float *gates = sums + r * PANEL;
            for (int64_t i = 0; i < PANEL / 2; i++)
                gates[i] = gated(gates[i], gates[PANEL / 2 + i], of->how);
            for (int64_t i = 0; i < PANEL / 2; i += REGISTER_LANES)
                write_lanes(of, first + r, column / 2 + i, load_reg(gates + i));
        }
        return;
    }
    if (of->bias)
        for (int64_t r = 0; r < count; r++)
            for (int64_t i = 0; i < PANEL && column + i < of->outputs; i++)
                sums[r * PANEL + i] += of->bias[column + i];
    for (int64_t r = 0; r < count; r++)
        for (int64_t i = 0; i < PANEL && column + i < of->outputs; i += REGISTER_LANES)
            write_lanes(of, first + r, column + i, load_reg(sums + r * PANEL + i));
}

/* Rows [first, first + count) with one panel. */
static void run_panel(const running *of, int64_t first, int64_t count, int64_t panel, int asks_ahead)
{
    float sums[32 * PANEL];
    const char *weight = of->packed + panel * of->panel_bytes;
#ifdef HAS_TILES
    if (of->by_tiles) {
        for (int64_t r = 0; r < count; r += 32) {
            int64_t from = r, height = count - r < 32 ? count - r : 32;
            if (height < TILE_SIDE && count >= TILE_SIDE) { /* the last rows again, a whole tile */
                from = count - TILE_SIDE;
                height = TILE_SIDE;
            }
            if (of->kind == BYTES)
                bytes_by_tiles(&of->bytes, first + from, height, of->groups, weight, sums);
            else
                bfloat16_by_tiles(of->x + (first + from) * of->stride, of->stride, height,
                                  of->groups, weight, sums);
            finish(of, first + from, height, panel, sums);
        }
        return;
    }
#endif
    int64_t most = of->kind == BYTES ? BYTE_TILE_ROWS : TILE_ROWS;
    int64_t tiles = (count + most - 1) / most;
    /* Each tile asks for its part, so that memory is busy all the time. */
    asks_ahead &= panel + AHEAD < of->panels;
    const char *ahead = weight + asks_ahead * AHEAD * of->panel_bytes;
    int64_t share = asks_ahead ? of->panel_bytes / tiles : 0;
    for (int64_t t = 0; t < tiles; t++) {
        int64_t from = count * t / tiles, height = count * (t + 1) / tiles - from;
        const char *here = ahead + t * share;
        int64_t step = share / of->groups;
        if (of->kind == BYTES)
            BYTE_TILES[height](&of->bytes, first + from, of->groups, weight, here, step, sums);
        else
            TILES[of->kind][height](of->x + (first + from) * of->stride, of->stride, of->groups,
                                    weight, here, step, sums);
        finish(of, first + from, height, panel, sums);
    }
}

static void run(const running *of, int64_t rows, int is_worth_a_team, int threads)
{
    int64_t most = BLOCK_BYTES / of->stride;
    most = most < 32 ? 32 : most;
    int64_t blocks = (rows + most - 1) / most;
#pragma omp parallel num_threads(is_worth_a_team ? threads : 1)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = rows * block / blocks, size = rows * (block + 1) / blocks - first;
#ifdef HAS_TILES
        if (of->by_tiles)
            shape_tiles(size);
#endif
        /* Whoever is free takes the next panel: a core that is taken away delays one panel only. */
#pragma omp for schedule(dynamic) nowait
        for (int64_t panel = 0; panel < of->panels; panel++)
            run_panel(of, first, size, panel, block == 0);
#ifdef HAS_TILES
        if (of->by_tiles)
            tile_free();
#endif
    }
}

/* out = x W^T * scales + bias, or f(gate) * value of its two halves. Returns 0, or 1 without memory.
 *
 * Shapes: x [rows, inputs], float32, or bfloat16 where `is_bf16`, as is out unless it `is_wide`; packed as pack_* leave
 * it for the kind (rows are brought to bytes here); scales [panels * PANEL] in the same order, null
 * for weights that have none; bias float32 [outputs] or null (and null where it is gated); out
 * [rows, outputs], or [rows, outputs / 2] where it is gated: then outputs is a multiple of PANEL.
 * `inputs` is a multiple of the kind's GROUP_INPUTS. */
int matmul(const void *x, const void *packed, const float *scales, const float *bias, void *out,
           int64_t rows, int64_t outputs, int64_t inputs, int kind, int is_bf16, int is_wide,
           int how, int threads)
{
    int64_t groups = inputs / GROUP_INPUTS[kind];
    running of = {
        .x = x,
        .stride = inputs * (is_bf16 ? 2 : 4),
        .groups = groups,
        .packed = packed,
        .panel_bytes = groups * PANEL * GROUP_BYTES[kind],
        .panels = (outputs + PANEL - 1) / PANEL,
        .scales = scales,
        .bias = bias,
        .out = out,
        .outputs = outputs,
        .width = how == PLAIN ? outputs : outputs / 2,
        .kind = kind,
        .how = how,
        .is_bf16 = is_bf16 && !is_wide,
    };
#ifdef HAS_TILES
    of.by_tiles = (kind == BYTES || kind == BFLOAT16) && groups % TILE_GROUPS == 0 &&
                  has_tile_products();
#endif
    int is_worth_a_team = rows * outputs * inputs >= WORTH_A_TEAM_OF_PRODUCTS;
    if (rows == 0)
        return 0;
    if (kind != BYTES) {
        run(&of, rows, is_worth_a_team, threads);
        return 0;
    }
    int64_t blocks = (inputs + BLOCK_INPUTS - 1) / BLOCK_INPUTS;
    size_t row_bytes = (size_t)blocks * (sizeof(float) + sizeof(int32_t)) + (size_t)inputs;
    char *memory = malloc((size_t)rows * row_bytes);
    if (!memory)
        return 1;
    float *own_scales = (float *)memory;
    int32_t *starts = (int32_t *)(own_scales + rows * blocks);
    int8_t *bytes = (int8_t *)(starts + rows * blocks);
#pragma omp parallel for schedule(static) num_threads(rows * inputs >= WORTH_A_TEAM ? threads : 1)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t block = 0; block < blocks; block++) {
            int64_t at = row * inputs + block * BLOCK_INPUTS, left = inputs - block * BLOCK_INPUTS;
            int64_t size = left < BLOCK_INPUTS ? left : BLOCK_INPUTS, to = row * blocks + block;
            if (is_bf16)
                bytes_of_bfloat16((const bf16 *)x + at, size, bytes + at, own_scales + to,
                                  starts + to);
            else
                bytes_of_floats((const float *)x + at, size, bytes + at, own_scales + to,
                                starts + to);
        }
    of.bytes = (byte_rows){(const char *)bytes, own_scales, starts, inputs, blocks};
    of.stride = inputs;
    run(&of, rows, is_worth_a_team, threads);
    free(memory);
    return 0;
}

int run_product(const product *by, const void *x, void *out, int64_t rows, int is_bf16, int threads)
{
    if (by->kind == OF_BLOCKS)
        return block_matmul(x, by->packed, by->panels, by->bias, out, rows, by->outputs, by->inputs,
                            by->num_panels, by->how, is_bf16, threads);
    return matmul(x, by->packed, by->scales, by->bias, out, rows, by->outputs, by->inputs, by->kind,
                  is_bf16, 0, by->how, threads);
}
