/* x W^T in float32, with the weight in panels: floats, or a byte a number with a scale for each
 * output. See README.md.
 *
 * A panel is PANEL outputs wide, its inputs one after the other: every row of x that meets it reads
 * it front to back. A tile of rows keeps its sums in registers from the first input to the last, so
 * each sum is one chain in the order of the inputs, whatever other rows are in the batch. */

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

/* Lay a weight [outputs, inputs] out as [panels, inputs, PANEL], the last panel filled with zeros.
 * Where `is_gated`, outputs are gates and, half of them on, what these let through: then a panel
 * holds some gates and behind them what they let through. */
#define PACK(NAME, WEIGHT)                                                                         \
    void NAME(const WEIGHT *weight, WEIGHT *packed, int64_t outputs, int64_t inputs, int is_gated, \
              int threads)                                                                         \
    {                                                                                              \
        int64_t panels = (outputs + PANEL - 1) / PANEL;                                            \
        _Pragma("omp parallel for schedule(static) num_threads(threads)")                          \
        for (int64_t p = 0; p < panels; p++)                                                       \
            for (int64_t lane = 0; lane < PANEL; lane++) {                                         \
                int64_t half = PANEL / 2, output = p * PANEL + lane;                               \
                int64_t gated = lane / half * (outputs / 2) + p * half + lane % half;              \
                const WEIGHT *row = weight + (is_gated ? gated : output) * inputs;                 \
                for (int64_t i = 0; i < inputs; i++)                                               \
                    packed[(p * inputs + i) * PANEL + lane] = output < outputs ? row[i] : 0;       \
            }                                                                                      \
    }

PACK(pack_floats, float)
PACK(pack_bytes, int8_t)

static inline float gated(float gate, float value, enum epilogue how)
{
    float z = how == GATED_BY_SILU
                  ? gate
                  : 1.59576912f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exp_of(-z)) * value;
}

/* Write the sums of a panel, of which `width` are outputs. */
static inline void write_plain(const float *from, int64_t rows, const float *bias, float *out,
                               int64_t stride, int64_t width)
{
    for (int64_t r = 0; r < rows; r++, from += PANEL, out += stride)
        for (int64_t i = 0; i < width; i++)
            out[i] = bias ? from[i] + bias[i] : from[i];
}

static inline void write_gated(const float *from, int64_t rows, float *out, int64_t stride,
                               enum epilogue how)
{
    for (int64_t r = 0; r < rows; r++, from += PANEL, out += stride)
        for (int64_t i = 0; i < PANEL / 2; i++)
            out[i] = gated(from[i], from[PANEL / 2 + i], how);
}

typedef struct {
    const float *x;
    const char *packed;
    const float *scales, *bias;
    float *out;
    int64_t outputs, inputs, panels;
    enum weight of;
    enum epilogue how;
} product;

/* Rows [from, to) with one panel. */
static void run_tile(const product *of, int64_t from, int64_t to, int64_t panel, int asks_ahead)
{
    float sums[TILE_ROWS * PANEL];
    int64_t size = of->inputs * PANEL * WEIGHT_BYTES[of->of], column = panel * PANEL;
    const char *weight = of->packed + panel * size;
    const char *ahead = asks_ahead && panel + AHEAD < of->panels ? weight + AHEAD * size : weight;
    TILES[of->of][to - from](of->x + from * of->inputs, of->inputs, weight, ahead, sums);
    if (of->scales)
        for (int64_t r = 0; r < to - from; r++)
            for (int64_t i = 0; i < PANEL; i++)
                sums[r * PANEL + i] *= of->scales[column + i];
    if (of->how != PLAIN) {
        int64_t stride = of->outputs / 2;
        write_gated(sums, to - from, of->out + from * stride + column / 2, stride, of->how);
        return;
    }
    int64_t left = of->outputs - column, width = left < PANEL ? left : PANEL;
    const float *bias = of->bias ? of->bias + column : NULL;
    write_plain(sums, to - from, bias, of->out + from * of->outputs + column, of->outputs, width);
}

/* out = x W^T * scales + bias, or f(gate) * value of its two halves.
 *
 * Shapes: x [rows, inputs], packed as pack_floats or pack_bytes leave it, scales [panels * PANEL]
 * in the same order, null for floats, bias [outputs] or null (and null where it is gated), out
 * [rows, outputs], or [rows, outputs / 2] where it is gated: then outputs is a multiple of PANEL. */
void matmul(const float *x, const void *packed, const float *scales, const float *bias, float *out,
            int64_t rows, int64_t outputs, int64_t inputs, int weight, int how, int threads)
{
    const product of = {x,       packed, scales,                         bias,   out,
                        outputs, inputs, (outputs + PANEL - 1) / PANEL, weight, how};
    int64_t most = BLOCK_BYTES / (int64_t)sizeof(float) / inputs;
    most = most < TILE_ROWS ? TILE_ROWS : most;
    int64_t blocks = (rows + most - 1) / most;
    int is_worth_a_team = rows * outputs * inputs >= WORTH_A_TEAM_OF_PRODUCTS;
#pragma omp parallel num_threads(is_worth_a_team ? threads : 1)
    for (int64_t block = 0; block < blocks; block++) {
        int64_t first = rows * block / blocks, size = rows * (block + 1) / blocks - first;
        int64_t tiles = (size + TILE_ROWS - 1) / TILE_ROWS;
        /* Whoever is free takes the next panel: a core that is taken away delays one panel only. */
#pragma omp for schedule(dynamic) nowait
        for (int64_t panel = 0; panel < of.panels; panel++)
            for (int64_t t = 0; t < tiles; t++)
                run_tile(&of, first + size * t / tiles, first + size * (t + 1) / tiles, panel,
                         block == 0 && t == 0);
    }
}
