/* x W^T with the weight in GGUF's quantised blocks, kept in their bits, and x in signed bytes.
 *
 * A row of x becomes bytes with a scale for each 32 inputs, once in a call. A panel is PANEL outputs
 * wide; 256 of its inputs, a chunk, are what is unpacked at a time: scales to floats, codes to
 * unsigned bytes. A tile of rows meets the chunk while it is in the L1 cache: bytes are multiplied
 * and summed as whole numbers over a block, which then joins the float sums, times both scales.
 * See README.md. */

#include <stdlib.h>

#include "block_kinds.h"
#include "dots.h"
#include "products.h"

#define WIDE 2
#define PANEL (WIDE * REGISTER_LANES)
#define GROUPS (BLOCK / 4)
#define GROUP_BYTES (PANEL * 4)
#ifdef __AVX512F__ /* 32 registers: 12 sums of a block and 12 of all, two of the weight, one of x */
#define TILE_ROWS 6
#else
#define TILE_ROWS 2
#endif
/* Rows in bytes that are worked on together: half of a core's L2; fewer than the least would read
 * the weight too often, more than the most would not find room for their sums. */
#define ROWS_BYTES (512 << 10)
#define LEAST_ROWS 48
#define MOST_ROWS 192
/* Panels ahead that memory is asked for: the next one is the other thread's. */
#define AHEAD 2
#define LINE 64
/* Below this many products, waking the other threads takes longer than the work. */
#define WORTH_A_TEAM_OF_PRODUCTS (1 << 19)

enum epilogue { NO_GATE, GATED_BY_SILU, GATED_BY_GELU };

/* 256 inputs of a row of x: codes, and for each 32 of them a scale, the sum of their values, and
 * what the products with codes whose centre is 128 start at, also for each 16. */
typedef struct {
    int8_t codes[CHUNK];
    float scales[CHUNK_BLOCKS], sums[CHUNK_BLOCKS];
    int32_t starts[CHUNK_BLOCKS], half_starts[2 * CHUNK_BLOCKS];
    char unused[32];
} row_chunk;

/* A panel in the packed weight: where it begins, its kind, and the outputs that it holds. */
typedef struct {
    int64_t offset, kind, first, width;
} block_panel;

int64_t block_panel_width(void)
{
    return PANEL;
}

static int64_t chunks_of(int64_t inputs)
{
    return (inputs + CHUNK - 1) / CHUNK;
}

static int blocks_of(int64_t inputs, int64_t chunk)
{
    int64_t left = (inputs - chunk * CHUNK) / BLOCK;
    return (int)(left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS);
}

/* Bytes of a lane's scales in a chunk. */
static int64_t scale_bytes(enum block_kind kind, int blocks)
{
    switch (FORMS[kind].scaling) {
    case PLAIN_SCALES:
        return blocks * 2;
    case WITH_LEAST:
        return blocks * 4;
    case BYTES_WITH_LEAST:
        return 4 + blocks * 2;
    default:
        return 2 + blocks * 2;
    }
}

static int64_t chunk_bytes(enum block_kind kind, int blocks)
{
    return PANEL * (scale_bytes(kind, blocks) + blocks * FORMS[kind].bits * BLOCK / 8);
}

/* What a panel of so many inputs takes. */
int64_t block_panel_bytes(int64_t kind, int64_t inputs)
{
    int64_t bytes = 0;
    for (int64_t chunk = 0; chunk < chunks_of(inputs); chunk++)
        bytes += chunk_bytes((enum block_kind)kind, blocks_of(inputs, chunk));
    return bytes;
}

/* ---- Packing ---- */

static void put_scales(enum block_kind kind, const opened_chunk *from, int blocks, int lane,
                       uint8_t *to)
{
    uint16_t *halves = (uint16_t *)to;
    switch (FORMS[kind].scaling) {
    case PLAIN_SCALES:
        for (int b = 0; b < blocks; b++)
            halves[b * PANEL + lane] = from->scales[b];
        return;
    case WITH_LEAST:
        for (int b = 0; b < blocks; b++) {
            halves[2 * b * PANEL + lane] = from->scales[b];
            halves[(2 * b + 1) * PANEL + lane] = from->leasts[b];
        }
        return;
    case BYTES_WITH_LEAST:
        halves[lane] = from->scales[0];
        halves[PANEL + lane] = from->leasts[0];
        to += 4 * PANEL;
        for (int b = 0; b < blocks; b++) {
            to[2 * b * PANEL + lane] = from->scale_bytes[b];
            to[(2 * b + 1) * PANEL + lane] = from->least_bytes[b];
        }
        return;
    case BYTES_OF_HALVES:
        halves[lane] = from->scales[0];
        to += 2 * PANEL;
        for (int h = 0; h < 2 * blocks; h++)
            to[h * PANEL + lane] = from->scale_bytes[h];
    }
}

/* A block's codes of one lane: bytes, or nibbles of two groups in a byte and behind them the bits
 * that are left, of as many groups as a byte has room for. */
static void put_codes(int bits, const uint8_t *codes, int lane, uint8_t *to)
{
    uint8_t *high = to + GROUPS / 2 * GROUP_BYTES;
    for (int i = 0; i < BLOCK; i++) {
        int group = i / 4, at = lane * 4 + i % 4;
        if (bits == 8) {
            to[group * GROUP_BYTES + at] = codes[i];
            continue;
        }
        to[group / 2 * GROUP_BYTES + at] |= (codes[i] & 15) << group % 2 * 4;
        if (bits > 4) {
            int left = bits - 4, room = 8 / left;
            high[group / room * GROUP_BYTES + at] |= codes[i] >> 4 << group % room * left;
        }
    }
}

/* Lay rows of blocks [outputs, row_bytes] out as [panels][chunks][scales, blocks of codes], the
 * last panel filled with zeros. Where `is_gated`, as in matmul.c: the first half of the outputs
 * are the gates of the second, and a panel holds some gates and behind them what they let through. */
void pack_blocks(const uint8_t *rows, uint8_t *packed, int64_t outputs, int64_t inputs,
                 int64_t kind_number, int is_gated, int threads)
{
    const enum block_kind kind = (enum block_kind)kind_number;
    const block_form form = FORMS[kind];
    int64_t panels = (outputs + PANEL - 1) / PANEL, size = block_panel_bytes(kind, inputs);
    int64_t row_bytes = inputs / form.inputs * form.bytes;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t p = 0; p < panels; p++) {
        uint8_t *to = packed + p * size;
        memset(to, 0, size);
        for (int64_t chunk = 0; chunk < chunks_of(inputs); chunk++) {
            int blocks = blocks_of(inputs, chunk);
            uint8_t *codes = to + PANEL * scale_bytes(kind, blocks);
            for (int lane = 0; lane < PANEL; lane++) {
                int64_t half = PANEL / 2, output = p * PANEL + lane;
                int64_t gated = lane / half * (outputs / 2) + p * half + lane % half;
                if (output >= outputs)
                    continue;
                opened_chunk opened;
                open_chunk(kind,
                           rows + (is_gated ? gated : output) * row_bytes +
                               chunk * CHUNK / form.inputs * form.bytes,
                           blocks, &opened);
                put_scales(kind, &opened, blocks, lane, to);
                for (int b = 0; b < blocks; b++)
                    put_codes(form.bits, opened.codes + b * BLOCK, lane,
                              codes + b * GROUP_BYTES * form.bits);
            }
            to += chunk_bytes(kind, blocks);
        }
    }
}

/* ---- Unpacking a chunk ---- */

/* What a tile reads of a chunk; `leasts` are null where codes have a centre. */
typedef struct {
    const uint8_t *codes; /* [blocks][GROUPS][PANEL][4] */
    float scales[2 * CHUNK_BLOCKS * PANEL], leasts[CHUNK_BLOCKS * PANEL];
    uint8_t unpacked[CHUNK_BLOCKS * GROUPS * GROUP_BYTES] __attribute__((aligned(64)));
} unpacked_chunk;

/* Halves to floats: the fields of a float32 in other places, whose exponent counts from 15 instead
 * of from 127. Scales are finite. */
static inline reg load_halves(const uint16_t *from)
{
#ifdef __AVX512F__
    return (reg)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#else
    int32_t wide[REGISTER_LANES];
    for (int i = 0; i < REGISTER_LANES; i++)
        wide[i] = (int32_t)((uint32_t)(from[i] & 0x8000) << 16) | (from[i] & 0x7FFF) << 13;
    return as_floats(load_ints(wide)) * 0x1p112f;
#endif
}

static inline reg load_unsigned(const uint8_t *from)
{
    int32_t wide[REGISTER_LANES];
    for (int i = 0; i < REGISTER_LANES; i++)
        wide[i] = from[i];
    return __builtin_convertvector(load_ints(wide), reg);
}

static inline reg load_signed(const int8_t *from)
{
    int32_t wide[REGISTER_LANES];
    for (int i = 0; i < REGISTER_LANES; i++)
        wide[i] = from[i];
    return __builtin_convertvector(load_ints(wide), reg);
}

static void unpack_scales(enum scaling scaling, const uint8_t *from, int blocks,
                          unpacked_chunk *to)
{
    const uint16_t *halves = (const uint16_t *)from;
    for (int c = 0; c < PANEL; c += REGISTER_LANES) {
        if (scaling == PLAIN_SCALES || scaling == WITH_LEAST) {
            int each = scaling == WITH_LEAST ? 2 : 1;
            for (int b = 0; b < blocks; b++) {
                store_reg(to->scales + b * PANEL + c, load_halves(halves + each * b * PANEL + c));
                if (scaling == WITH_LEAST)
                    store_reg(to->leasts + b * PANEL + c,
                              load_halves(halves + (2 * b + 1) * PANEL + c));
            }
        } else if (scaling == BYTES_WITH_LEAST) {
            const reg scale = load_halves(halves + c), least = load_halves(halves + PANEL + c);
            const uint8_t *bytes = from + 4 * PANEL + c;
            for (int b = 0; b < blocks; b++) {
                store_reg(to->scales + b * PANEL + c, scale * load_unsigned(bytes + 2 * b * PANEL));
                store_reg(to->leasts + b * PANEL + c,
                          -least * load_unsigned(bytes + (2 * b + 1) * PANEL));
            }
        } else {
            const reg scale = load_halves(halves + c);
            const int8_t *bytes = (const int8_t *)from + 2 * PANEL + c;
            for (int h = 0; h < 2 * blocks; h++)
                store_reg(to->scales + h * PANEL + c, scale * load_signed(bytes + h * PANEL));
        }
    }
}

static inline ints each_byte(int number)
{
    return all_ints(number * 0x01010101);
}

static inline __attribute__((always_inline)) void unpack_codes(int bits, int raise,
                                                               const uint8_t *from, int blocks,
                                                               uint8_t *to)
{
    const int bytes = (int)sizeof(ints), left = bits - 4, room = left ? 8 / left : 1;
    const ints low = each_byte(15), mask = each_byte((1 << left) - 1), more = each_byte(raise);
    for (int b = 0; b < blocks; b++, from += GROUP_BYTES * bits, to += GROUP_BYTES * GROUPS)
        for (int c = 0; c < GROUP_BYTES; c += bytes) {
            const uint8_t *high = from + GROUPS / 2 * GROUP_BYTES + c;
            for (int g = 0; g < GROUPS; g++) {
                ints codes = load_ints(from + g / 2 * GROUP_BYTES + c) >> g % 2 * 4 & low;
                if (left)
                    codes |= (load_ints(high + g / room * GROUP_BYTES) >> g % room * left & mask)
                             << 4;
                store_ints(to + g * GROUP_BYTES + c, codes + more);
            }
        }
}

static void unpack(enum block_kind kind, const uint8_t *from, int blocks, unpacked_chunk *to)
{
    const block_form form = FORMS[kind];
    unpack_scales(form.scaling, from, blocks, to);
    from += PANEL * scale_bytes(kind, blocks);
    to->codes = form.bits == 8 ? from : to->unpacked;
    if (form.bits == 4)
        unpack_codes(4, form.raise, from, blocks, to->unpacked);
    else if (form.bits == 5)
        unpack_codes(5, form.raise, from, blocks, to->unpacked);
    else if (form.bits == 6)
        unpack_codes(6, form.raise, from, blocks, to->unpacked);
}

/* ---- Rows of x ---- */

typedef int32_t vec_bits
    __attribute__((vector_size(LANES * sizeof(int32_t)), aligned(4), may_alias));

static inline void store_low_bytes(int8_t *to, vec_bits lanes)
{
#ifdef __AVX512F__ /* GCC narrows element by element */
    _mm_storeu_si128((void *)to, _mm512_cvtepi32_epi8((__m512i)lanes));
#else
    for (int i = 0; i < LANES; i++)
        to[i] = (int8_t)lanes[i];
#endif
}

/* The larger in each lane. */
#define LARGER(a, b) ((a) ^ (((a) ^ (b)) & ((b) > (a))))

static inline int32_t largest_of(vec_bits lanes)
{
    typedef int32_t half __attribute__((vector_size(LANES / 2 * sizeof(int32_t))));
    typedef int32_t quarter __attribute__((vector_size(LANES / 4 * sizeof(int32_t))));
    half halves[2];
    quarter quarters[2];
    memcpy(halves, &lanes, sizeof halves);
    half eight = LARGER(halves[0], halves[1]);
    memcpy(quarters, &eight, sizeof quarters);
    quarter four = LARGER(quarters[0], quarters[1]);
    int32_t left = four[0] > four[1] ? four[0] : four[1];
    int32_t right = four[2] > four[3] ? four[2] : four[3];
    return left > right ? left : right;
}

/* Bring the largest of 32 values to 127, and round to the nearest. A block with a value that is
 * not finite has no scale: its row is not a number anywhere. */
static void quantise_block(const float *x, row_chunk *to, int block)
{
    int8_t *codes = to->codes + block * BLOCK;
    int sums[2];
    vec_bits bits[2];
    memcpy(bits, x, sizeof bits);
    /* As whole numbers magnitudes compare as they do as floats; what is not finite is largest. */
    bits[0] &= 0x7FFFFFFF;
    bits[1] &= 0x7FFFFFFF;
    int32_t largest = largest_of(LARGER(bits[0], bits[1]));
    float most;
    memcpy(&most, &largest, sizeof most);
    float scale = largest < 0x7F800000 ? most / 127.0f : NAN;
    /* Values so small that the scale is subnormal are nothing beside any other. */
    float inverse = scale >= 0x1p-126f ? 1.0f / scale : 0.0f;
    for (int half = 0; half < 2; half++, codes += LANES) {
        vec shifted = load(x + half * LANES) * inverse + 0x1.8p23f; /* low bits: the nearest */
        vec_bits rounded;
        memcpy(&rounded, &shifted, sizeof rounded);
        store_low_bytes(codes, rounded);
        sums[half] = (int)sum_of(shifted - 0x1.8p23f);
    }
    to->scales[block] = scale;
    to->sums[block] = scale * (float)(sums[0] + sums[1]);
    to->starts[block] = -128 * (sums[0] + sums[1]);
    to->half_starts[2 * block] = -128 * sums[0];
    to->half_starts[2 * block + 1] = -128 * sums[1];
}

static void quantise_chunk(const void *x, int is_bf16, int64_t first, int blocks, row_chunk *to)
{
    for (int b = 0; b < blocks; b++, first += BLOCK) {
        float wide[BLOCK];
        if (is_bf16)
            for (int i = 0; i < BLOCK; i += REGISTER_LANES)
                store_reg(wide + i, widen_bf16((const bf16 *)x + first + i));
        quantise_block(is_bf16 ? wide : (const float *)x + first, to, b);
    }
}

/* ---- Tiles ---- */

/* Memory that is asked for meanwhile, some lines with each block; none where it is null. */
typedef struct {
    const uint8_t *at;
    int64_t bytes; /* with a block */
} asked_ahead;

static inline void ask(asked_ahead ahead, int block)
{
    if (ahead.at)
        for (int64_t i = 0; i < ahead.bytes; i += LINE)
            __builtin_prefetch(ahead.at + block * ahead.bytes + i, 0, 2);
}

/* Add the products of some rows with one chunk to the sums [rows, PANEL]. */
typedef void block_tile(const row_chunk *x, int blocks, const unpacked_chunk *weight,
                        asked_ahead ahead, float *sums);

/* `PARTS` of a block have a scale of their own: one or two. With a least value sums of codes start
 * at 0, and the sum of x meets it; else they start at what a centre of 128 makes too much. */
#define TILE(NAME, PARTS, HAS_LEAST, ROWS)                                                         \
    static void NAME##_##ROWS(const row_chunk *x, int blocks, const unpacked_chunk *weight,        \
                              asked_ahead ahead, float *out)                                       \
    {                                                                                              \
        reg sums[ROWS][WIDE];                                                                      \
        const uint8_t *codes = weight->codes;                                                      \
        const float *scales = weight->scales, *leasts = weight->leasts;                            \
        memcpy(sums, out, sizeof sums);                                                            \
        for (int b = 0; b < blocks; b++) {                                                         \
            ask(ahead, b);                                                                         \
            _Pragma("GCC unroll 2") for (int part = 0; part < PARTS; part++) {                     \
                ints dots[ROWS][WIDE];                                                             \
                _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) {                           \
                    int32_t start = HAS_LEAST    ? 0                                               \
                                    : PARTS == 1 ? x[r].starts[b]                                  \
                                                 : x[r].half_starts[2 * b + part];                 \
                    _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) dots[r][c] =            \
                        all_ints(start);                                                           \
                }                                                                                  \
                const int first = part * GROUPS / PARTS;                                           \
                _Pragma("GCC unroll 8") for (int g = first; g < first + GROUPS / PARTS; g++) {     \
                    ints four[WIDE];                                                               \
                    _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) four[c] =               \
                        load_ints(codes + g * GROUP_BYTES + c * sizeof(ints));                     \
                    _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) {                       \
                        const ints inputs = all_ints(group_of(x[r].codes + b * BLOCK + 4 * g));    \
                        _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) dots[r][c] =        \
                            dot_bytes(dots[r][c], four[c], inputs);                                \
                    }                                                                              \
                }                                                                                  \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) {                           \
                    const reg scale = load_reg(scales + c * REGISTER_LANES);                       \
                    _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) sums[r][c] +=           \
                        __builtin_convertvector(dots[r][c], reg) * (scale * x[r].scales[b]);       \
                }                                                                                  \
                scales += PANEL;                                                                   \
            }                                                                                      \
            if (HAS_LEAST) {                                                                       \
                _Pragma("GCC unroll 2") for (int c = 0; c < WIDE; c++) {                           \
                    const reg least = load_reg(leasts + c * REGISTER_LANES);                       \
                    _Pragma("GCC unroll 6") for (int r = 0; r < ROWS; r++) sums[r][c] +=           \
                        least * x[r].sums[b];                                                      \
                }                                                                                  \
                leasts += PANEL;                                                                   \
            }                                                                                      \
            codes += GROUPS * GROUP_BYTES;                                                         \
        }                                                                                          \
        memcpy(out, sums, sizeof sums);                                                            \
    }

#if TILE_ROWS > 2
#define TALLER_TILES(...)                                                                          \
    TILE(__VA_ARGS__, 3)                                                                           \
    TILE(__VA_ARGS__, 4)                                                                           \
    TILE(__VA_ARGS__, 5)                                                                           \
    TILE(__VA_ARGS__, 6)
#define TALLER_NAMES(NAME) NAME##_3, NAME##_4, NAME##_5, NAME##_6
#else
#define TALLER_TILES(...)
#define TALLER_NAMES(NAME)
#endif
#define TILES_OF(...)                                                                              \
    TILE(__VA_ARGS__, 1)                                                                           \
    TILE(__VA_ARGS__, 2)                                                                           \
    TALLER_TILES(__VA_ARGS__)
#define NAMES_OF(NAME) {0, NAME##_1, NAME##_2, TALLER_NAMES(NAME)}

TILES_OF(centred, 1, 0)
TILES_OF(with_least, 1, 1)
TILES_OF(of_halves, 2, 0)

static block_tile *const TILES[][TILE_ROWS + 1] = {
    [PLAIN_SCALES] = NAMES_OF(centred),
    [WITH_LEAST] = NAMES_OF(with_least),
    [BYTES_WITH_LEAST] = NAMES_OF(with_least),
    [BYTES_OF_HALVES] = NAMES_OF(of_halves),
};

/* ---- The product ---- */

typedef struct {
    const row_chunk *x; /* [chunks][rows], `at_once` rows of a call that has more */
    const uint8_t *packed;
    const block_panel *panels;
    const float *bias;
    void *out;
    int64_t outputs, inputs, size;
    int how, is_bf16;
} block_product;

static inline float gated(float gate, float value, enum epilogue how)
{
    float z = how == GATED_BY_SILU
                  ? gate
                  : 1.59576912f * (gate + 0.044715f * gate * gate * gate);
    return gate / (1.0f + exp_of(-z)) * value;
}

/* Write `width` finished numbers of a row, [at, at + width) of the output. */
static void write_row(const block_product *of, const float *from, int64_t at, int64_t width)
{
    if (!of->is_bf16) {
        memcpy((float *)of->out + at, from, width * sizeof(float));
        return;
    }
    bf16 *to = (bf16 *)of->out + at;
    int64_t i = 0;
    for (; i + REGISTER_LANES <= width; i += REGISTER_LANES)
        round_to_bf16(to + i, load_reg(from + i));
    for (; i < width; i++)
        to[i] = bf16_of(from[i]);
}

/* Finish the sums of a panel and write them, from row `first` of the output on. */
static void write_panel(const block_product *of, const block_panel *panel, float *sums,
                        int64_t first)
{
    for (int64_t r = 0; r < of->size; r++, sums += PANEL) {
        if (of->how != NO_GATE) {
            float out[PANEL / 2];
            for (int i = 0; i < PANEL / 2; i++)
                out[i] = gated(sums[i], sums[PANEL / 2 + i], of->how);
            write_row(of, out, (first + r) * (of->outputs / 2) + panel->first / 2, PANEL / 2);
            continue;
        }
        if (of->bias)
            for (int64_t i = 0; i < panel->width; i++)
                sums[i] += of->bias[panel->first + i];
        write_row(of, sums, (first + r) * of->outputs + panel->first, panel->width);
    }
}

static void run_panel(const block_product *of, int64_t number, int64_t first, int asks_ahead)
{
    const block_panel *panel = of->panels + number;
    const int64_t distance = asks_ahead ? panel[AHEAD].offset - panel->offset : 0;
    const enum block_kind kind = (enum block_kind)panel->kind;
    const uint8_t *weight = of->packed + panel->offset;
    int64_t tiles = (of->size + TILE_ROWS - 1) / TILE_ROWS;
    float sums[MOST_ROWS * PANEL] __attribute__((aligned(64)));
    unpacked_chunk chunk;
    memset(sums, 0, of->size * PANEL * sizeof(float));
    for (int64_t number_of = 0; number_of < chunks_of(of->inputs); number_of++) {
        int blocks = blocks_of(of->inputs, number_of);
        const row_chunk *x = of->x + number_of * of->size;
        unpack(kind, weight, blocks, &chunk);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t from = of->size * t / tiles, to = of->size * (t + 1) / tiles;
            const asked_ahead ahead = {distance && t == 0 ? weight + distance : NULL,
                                       chunk_bytes(kind, blocks) / blocks};
            TILES[FORMS[kind].scaling][to - from](x + from, blocks, &chunk, ahead,
                                                  sums + from * PANEL);
        }
        weight += chunk_bytes(kind, blocks);
    }
    write_panel(of, panel, sums, first);
}

static int64_t rows_at_once(int64_t rows, int64_t inputs)
{
    int64_t most = ROWS_BYTES / (int64_t)sizeof(row_chunk) / chunks_of(inputs);
    most = most < LEAST_ROWS ? LEAST_ROWS : most;
    most = most > MOST_ROWS ? MOST_ROWS : most;
    return rows < most ? rows : most;
}

/* out = x W^T + bias, or f(gate) * value of its two halves.
 *
 * Shapes: x [rows, inputs], float32 or bfloat16, as is out [rows, outputs], or [rows, outputs / 2]
 * where it is gated; block_panel panels [num_panels] in packed, as pack_blocks left it; bias
 * [outputs] or null. Returns 0, or 1 where there is no memory for the rows in bytes. */
int block_matmul(const void *x, const uint8_t *packed, const void *panels, const float *bias,
                 void *out, int64_t rows, int64_t outputs, int64_t inputs, int64_t num_panels,
                 int how, int is_bf16, int threads)
{
    if (rows == 0) /* a step of which nothing is read */
        return 0;
    int64_t most = rows_at_once(rows, inputs), passes = (rows + most - 1) / most;
    int64_t chunks = chunks_of(inputs);
    int is_worth_a_team = rows * outputs * inputs >= WORTH_A_TEAM_OF_PRODUCTS;
    row_chunk *in_bytes = aligned_alloc(64, most * chunks * sizeof(row_chunk));
    if (in_bytes == NULL)
        return 1;
#pragma omp parallel num_threads(is_worth_a_team ? threads : 1)
    for (int64_t pass = 0; pass < passes; pass++) {
        int64_t first = rows * pass / passes, size = rows * (pass + 1) / passes - first;
        const block_product of = {in_bytes, packed, panels, bias, out,
                                  outputs,  inputs, size,   how,  is_bf16};
#pragma omp for schedule(static)
        for (int64_t i = 0; i < chunks * size; i++) {
            int64_t chunk = i / size, row = first + i % size;
            quantise_chunk(x, is_bf16, row * inputs + chunk * CHUNK, blocks_of(inputs, chunk),
                           in_bytes + i);
        }
        /* Whoever is free takes the next panel: a core that is taken away delays one panel only. */
#pragma omp for schedule(dynamic)
        for (int64_t panel = 0; panel < num_panels; panel++)
            run_panel(&of, panel, first, pass == 0 && panel + AHEAD < num_panels);
    }
    free(in_bytes);
    return 0;
}

/* out[i] = row ids[i] of the weight, dequantised: [count, inputs], float32 or bfloat16. */
void block_rows(const int64_t *ids, const uint8_t *packed, const block_panel *panels, void *out,
                int64_t count, int64_t inputs, int is_bf16, int threads)
{
    const block_product of = {.out = out, .is_bf16 = is_bf16};
#pragma omp parallel for num_threads(count > 1 ? threads : 1)
    for (int64_t i = 0; i < count; i++) {
        const block_panel *panel = panels + ids[i] / PANEL;
        const enum block_kind kind = (enum block_kind)panel->kind;
        const enum scaling scaling = FORMS[kind].scaling;
        const int has_least = scaling == WITH_LEAST || scaling == BYTES_WITH_LEAST;
        const int64_t lane = ids[i] % PANEL;
        const int each = scaling == BYTES_OF_HALVES ? BLOCK / 2 : BLOCK;
        const uint8_t *from = packed + panel->offset;
        unpacked_chunk chunk;
        float values[CHUNK];
        for (int64_t number = 0; number < chunks_of(inputs); number++) {
            int blocks = blocks_of(inputs, number);
            unpack(kind, from, blocks, &chunk);
            for (int k = 0; k < blocks * BLOCK; k++) {
                float code = chunk.codes[k / 4 * GROUP_BYTES + lane * 4 + k % 4];
                float scale = chunk.scales[k / each * PANEL + lane];
                values[k] = has_least ? scale * code + chunk.leasts[k / BLOCK * PANEL + lane]
                                      : scale * (code - 128.0f);
            }
            write_row(&of, values, i * inputs + number * CHUNK, blocks * BLOCK);
            from += chunk_bytes(kind, blocks);
        }
    }
}

/* ---- A file's rows as floats ---- */

/* As `load_halves`, also of what is infinite or no number: a file may hold anything. */
static float float_of_half(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x8000) << 16 | (uint32_t)(half & 0x7FFF) << 13;
    float value;
    if ((half & 0x7C00) == 0x7C00) {
        bits |= 0x7F800000;
        memcpy(&value, &bits, sizeof value);
        return value;
    }
    memcpy(&value, &bits, sizeof value);
    return value * 0x1p112f;
}

/* out[i] = scale * code + least, of codes with one scale. */
static inline void write_values(const uint8_t *codes, int count, float scale, float centre,
                                float least, float *out)
{
    for (int i = 0; i < count; i++)
        out[i] = scale * ((float)codes[i] - centre) + least;
}

static void write_chunk(enum block_kind kind, const opened_chunk *from, int blocks, float *out)
{
    const enum scaling scaling = FORMS[kind].scaling;
    const float centre = 128 - FORMS[kind].raise;
    if (scaling == BYTES_OF_HALVES) {
        const float scale = float_of_half(from->scales[0]);
        for (int h = 0; h < 2 * blocks; h++)
            write_values(from->codes + h * BLOCK / 2, BLOCK / 2,
                         scale * (int8_t)from->scale_bytes[h], centre, -0.0f, out + h * BLOCK / 2);
        return;
    }
    for (int b = 0; b < blocks; b++) {
        const uint8_t *codes = from->codes + b * BLOCK;
        if (scaling == PLAIN_SCALES)
            write_values(codes, BLOCK, float_of_half(from->scales[b]), centre, -0.0f,
                         out + b * BLOCK);
        else if (scaling == WITH_LEAST)
            write_values(codes, BLOCK, float_of_half(from->scales[b]), 0,
                         float_of_half(from->leasts[b]), out + b * BLOCK);
        else
            write_values(codes, BLOCK, float_of_half(from->scales[0]) * from->scale_bytes[b], 0,
                         -float_of_half(from->leasts[0]) * from->least_bytes[b], out + b * BLOCK);
    }
}

/* Dequantise rows of blocks as a file has them: [outputs, row_bytes] to float32 [outputs, inputs].
 * Products of a scale and a code fit into a float32, or are rounded once: the values are those of
 * gguf's reader, bit for bit. */
void block_values(const uint8_t *rows, float *out, int64_t outputs, int64_t inputs,
                  int64_t kind_number, int threads)
{
    const enum block_kind kind = (enum block_kind)kind_number;
    const block_form form = FORMS[kind];
    int64_t row_bytes = inputs / form.inputs * form.bytes;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < outputs; row++)
        for (int64_t chunk = 0; chunk < chunks_of(inputs); chunk++) {
            int blocks = blocks_of(inputs, chunk);
            opened_chunk opened;
            open_chunk(kind, rows + row * row_bytes + chunk * CHUNK / form.inputs * form.bytes,
                       blocks, &opened);
            write_chunk(kind, &opened, blocks, out + row * inputs + chunk * CHUNK);
        }
}
