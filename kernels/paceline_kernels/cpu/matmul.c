/* x W^T in float32, with the weight in panels. See README.md.
 *
 * A panel is PANEL outputs wide, its inputs one after the other: every row of x that meets it reads
 * it front to back. A tile of rows keeps its sums in registers from the first input to the last, so
 * each sum is one chain in the order of the inputs, whatever other rows are in the batch. */

#include "vectors.h"

#ifdef __AVX512F__ /* 32 registers: 28 sums, two of the weight, one of x */
#define TILE_ROWS 14
#else /* 16 registers: 12 sums */
#define TILE_ROWS 6
#endif
#define WIDE 2
#define PANEL (WIDE * REGISTER_LANES)
/* Rows that are worked on together: half of a core's L2, so that a panel finds them there. */
#define BLOCK_BYTES (384 << 10)
/* Panels ahead that memory is asked for: the next one is the other thread's. */
#define AHEAD 2
/* Below this many products, waking the other threads takes longer than the work. */
#define WORTH_A_TEAM_OF_PRODUCTS (1 << 18)

enum epilogue { PLAIN, GATED_BY_SILU, GATED_BY_GELU };

typedef struct {
    reg sums[WIDE];
} sums;

typedef void tile(const float *x, int64_t inputs, const float *panel, const float *ahead,
                  float *out);

/* Sums of ROWS rows of x with one panel. Five pointers reach 14 rows: row r is the r / 3rd
 * pointer and r % 3 strides on, which one instruction can add. */
#define TILE(ROWS)                                                                                 \
    static void tile_##ROWS(const float *x, int64_t inputs, const float *panel,                    \
                            const float *ahead, float *out)                                        \
    {                                                                                              \
        enum { POINTERS = (ROWS + 2) / 3 };                                                        \
        sums rows[ROWS];                                                                           \
        const char *at[POINTERS];                                                                  \
        const int64_t stride = inputs * (int64_t)sizeof(float);                                    \
        const float *end = panel + inputs * PANEL;                                                 \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) rows[r].sums[c] = (reg){0};     \
        _Pragma("GCC unroll 5") for (int p = 0; p < POINTERS; p++)                                 \
            at[p] = (const char *)(x + 3 * p * inputs);                                            \
        for (; panel < end; panel += PANEL, ahead += PANEL) {                                      \
            reg weight[WIDE];                                                                      \
            _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) {                               \
                weight[c] = load_reg(panel + c * REGISTER_LANES);                                  \
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

TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#if TILE_ROWS > 6
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
TILE(13)
TILE(14)
#endif

static tile *const TILES[] = {
    0,      tile_1, tile_2, tile_3,  tile_4,  tile_5,  tile_6,
#if TILE_ROWS > 6
    tile_7, tile_8, tile_9, tile_10, tile_11, tile_12, tile_13, tile_14,
#endif
};

int64_t panel_width(void)
{
    return PANEL;
}

/* Lay a weight [outputs, inputs] out as [panels, inputs, PANEL], the last panel filled with zeros.
 * Where `is_gated`, outputs are gates and, half of them on, what these let through: then a panel
 * holds some gates and behind them what they let through. */
void pack_weight(const float *weight, float *packed, int64_t outputs, int64_t inputs, int is_gated,
                 int threads)
{
    int64_t panels = (outputs + PANEL - 1) / PANEL;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < panels; p++)
        for (int64_t lane = 0; lane < PANEL; lane++) {
            int64_t output = p * PANEL + lane;
            int64_t gated = lane / (PANEL / 2) * (outputs / 2) + p * (PANEL / 2) + lane % (PANEL / 2);
            const float *row = weight + (is_gated ? gated : output) * inputs;
            for (int64_t i = 0; i < inputs; i++)
                packed[(p * inputs + i) * PANEL + lane] = output < outputs ? row[i] : 0.0f;
        }
}

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
    const float *x, *packed, *bias;
    float *out;
    int64_t outputs, inputs, panels;
    enum epilogue how;
} product;

/* Rows [from, to) with one panel. */
static void run_tile(const product *of, int64_t from, int64_t to, int64_t panel, int asks_ahead)
{
    float sums[TILE_ROWS * PANEL];
    int64_t size = of->inputs * PANEL, column = panel * PANEL;
    const float *weight = of->packed + panel * size;
    const float *ahead = asks_ahead && panel + AHEAD < of->panels ? weight + AHEAD * size : weight;
    TILES[to - from](of->x + from * of->inputs, of->inputs, weight, ahead, sums);
    if (of->how != PLAIN) {
        int64_t stride = of->outputs / 2;
        write_gated(sums, to - from, of->out + from * stride + column / 2, stride, of->how);
        return;
    }
    int64_t left = of->outputs - column, width = left < PANEL ? left : PANEL;
    const float *bias = of->bias ? of->bias + column : NULL;
    write_plain(sums, to - from, bias, of->out + from * of->outputs + column, of->outputs, width);
}

/* out = x W^T + bias, or f(gate) * value of its two halves.
 *
 * Shapes: x [rows, inputs], packed as pack_weight leaves it, bias [outputs] or null (and null
 * where it is gated), out [rows, outputs], or [rows, outputs / 2] where it is gated: then
 * outputs is a multiple of PANEL. */
void matmul(const float *x, const float *packed, const float *bias, float *out, int64_t rows,
            int64_t outputs, int64_t inputs, int how, int threads)
{
    const product of = {x, packed, bias, out, outputs, inputs, (outputs + PANEL - 1) / PANEL, how};
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
