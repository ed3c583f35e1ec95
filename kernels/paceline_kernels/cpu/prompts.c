/* Attention of prompts in float32, over blocks where they lie. See README.md.
 *
 * A tile is some queries of one sequence with all the heads that share a KV head: LINES lines, of
 * which the last may be empty. Scores are kept as [keys, lines], so that keys are read as they lie
 * in the cache, what is done to a score is done to all the lines at once, and the weights meet the
 * values in the order in which both lie. */

#include <stdlib.h>

#include "vectors.h"

#ifdef __AVX512F__ /* 32 registers: 8 keys with two of lines, 6 lines with four of a value */
#define KEYS 8
#define VALUE_WIDE 4
#else /* 16 registers: 4 keys with two of lines, 6 lines with two of a value */
#define KEYS 4
#define VALUE_WIDE 2
#endif
#define LINES 32 /* MAX_GROUP in native.py */
#define VALUE_LINES 6

typedef struct {
    const float *cache;
    const int32_t *blocks;
    int64_t block_size;
    int64_t stride; /* from a token's head to the next token's */
} keys_at;

static inline const float *token_of(const keys_at *keys, int64_t token)
{
    int64_t block = keys->blocks[token / keys->block_size];
    return keys->cache + (block * keys->block_size + token % keys->block_size) * keys->stride;
}

/* scores[i] = q . the key at[i], for KEYS keys and two registers of lines; q is [head, LINES],
 * scores [KEYS, LINES], both from the first of these lines on. */
static inline void score(const float *const *at, const float *q, int64_t head, float *scores)
{
    reg left[KEYS], right[KEYS];
    _Pragma("GCC unroll 8") for (int i = 0; i < KEYS; i++) left[i] = right[i] = (reg){0};
    for (int64_t d = 0; d < head; d++, q += LINES) {
        reg a = load_reg(q), b = load_reg(q + REGISTER_LANES);
        _Pragma("GCC unroll 8") for (int i = 0; i < KEYS; i++) {
            left[i] += at[i][d] * a;
            right[i] += at[i][d] * b;
        }
    }
    for (int i = 0; i < KEYS; i++) {
        store_reg(scores + i * LINES, left[i]);
        store_reg(scores + i * LINES + REGISTER_LANES, right[i]);
    }
}

/* The weighted sums of the values for VALUE_LINES lines and WIDTH registers of the head. */
#define VALUE_TILE(WIDTH)                                                                          \
    static void add_values_##WIDTH(const keys_at *values, const float *weights, int64_t first,     \
                                   int64_t end, reg out[VALUE_LINES][VALUE_WIDE])                  \
    {                                                                                              \
        reg sums[VALUE_LINES][WIDTH];                                                              \
        _Pragma("GCC unroll 6") for (int l = 0; l < VALUE_LINES; l++)                              \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDTH; c++) sums[l][c] = (reg){0};         \
        for (int64_t token = first; token < end;) {                                                \
            int64_t left = values->block_size - token % values->block_size;                        \
            int64_t until = token + left < end ? token + left : end;                               \
            const float *value = token_of(values, token);                                          \
            for (; token < until; token++, value += values->stride, weights += LINES) {            \
                reg lanes[WIDTH];                                                                  \
                _Pragma("GCC unroll 4") for (int c = 0; c < WIDTH; c++)                            \
                    lanes[c] = load_reg(value + c * REGISTER_LANES);                               \
                _Pragma("GCC unroll 6") for (int l = 0; l < VALUE_LINES; l++)                      \
                    _Pragma("GCC unroll 4") for (int c = 0; c < WIDTH; c++)                        \
                        sums[l][c] += weights[l] * lanes[c];                                       \
            }                                                                                      \
        }                                                                                          \
        for (int l = 0; l < VALUE_LINES; l++)                                                      \
            memcpy(out[l], sums[l], sizeof sums[l]);                                               \
    }

VALUE_TILE(1)
#if VALUE_WIDE == 4
VALUE_TILE(4)
#define add_values_wide add_values_4
#else
VALUE_TILE(2)
#define add_values_wide add_values_2
#endif

/* Turn scores [keys, LINES] into weights, not yet divided by their sums; inverse[line] is 1 / sum.
 * Line l sees the keys from seen_from[l] to before seen_to[l], of those that begin with 0. */
static void weigh(float *scores, int64_t keys, const int64_t *seen_from, const int64_t *seen_to,
                  float scale, float *inverse)
{
    int64_t all_from = 0, all_to = keys;
    for (int64_t l = 0; l < LINES; l++) {
        all_from = seen_from[l] > all_from ? seen_from[l] : all_from;
        all_to = seen_to[l] < all_to ? seen_to[l] : all_to;
    }
    float best[LINES], sums[LINES];
    for (int64_t l = 0; l < LINES; l++) {
        best[l] = -INFINITY;
        sums[l] = 0.0f;
    }
    for (int64_t key = 0; key < keys; key++) {
        float *line = scores + key * LINES;
        if (key < all_from || key >= all_to)
            for (int64_t l = 0; l < LINES; l++)
                line[l] = key < seen_from[l] || key >= seen_to[l] ? -INFINITY : line[l];
        for (int64_t l = 0; l < LINES; l++)
            best[l] = line[l] > best[l] ? line[l] : best[l];
    }
    for (int64_t key = 0; key < keys; key++) {
        float *line = scores + key * LINES;
        for (int64_t l = 0; l < LINES; l++)
            line[l] = exp_of((line[l] - best[l]) * scale);
        if (key < all_from || key >= all_to)
            for (int64_t l = 0; l < LINES; l++)
                line[l] = key < seen_from[l] || key >= seen_to[l] ? 0.0f : line[l];
        for (int64_t l = 0; l < LINES; l++)
            sums[l] += line[l];
    }
    for (int64_t l = 0; l < LINES; l++)
        inverse[l] = 1.0f / sums[l];
}

typedef struct {
    const float *q; /* the tile's first token: [group, head], then `q_stride` on */
    float *out;     /* as q, `out_stride` on */
    int64_t q_stride, out_stride;
    int64_t tokens, group, head;
    int64_t position; /* of the first token */
    int64_t window;
    float scale;
    keys_at keys, values;
} tile;

/* The queries as [head, LINES], empty lines 0. */
static void turn_queries(const tile *tile, float *q)
{
    memset(q, 0, (size_t)tile->head * LINES * sizeof(float));
    for (int64_t token = 0; token < tile->tokens; token++)
        for (int64_t g = 0; g < tile->group; g++)
            for (int64_t d = 0; d < tile->head; d++)
                q[d * LINES + token * tile->group + g] =
                    tile->q[token * tile->q_stride + g * tile->head + d];
}

static void write_values(const tile *tile, const float *weights, int64_t first, int64_t end,
                         const float *inverse)
{
    int64_t lines = tile->tokens * tile->group;
    for (int64_t line = 0; line < lines; line += VALUE_LINES)
        for (int64_t d = 0, width; d < tile->head; d += width * REGISTER_LANES) {
            reg sums[VALUE_LINES][VALUE_WIDE];
            keys_at values = tile->values;
            values.cache += d;
            width = tile->head - d >= VALUE_WIDE * REGISTER_LANES ? VALUE_WIDE : 1;
            (width == 1 ? add_values_1 : add_values_wide)(&values, weights + line, first, end, sums);
            for (int64_t l = line; l < lines && l < line + VALUE_LINES; l++) {
                float *to = tile->out + l / tile->group * tile->out_stride +
                            l % tile->group * tile->head + d;
                for (int64_t c = 0; c < width; c++)
                    store_reg(to + c * REGISTER_LANES, sums[l - line][c] * inverse[l]);
            }
        }
}

static void attend(const tile *tile, float *memory)
{
    int64_t end = tile->position + tile->tokens;
    int64_t unseen = tile->position - tile->window + 1;
    int64_t first = unseen > 0 ? unseen : 0;
    float *q = memory, *scores = memory + tile->head * LINES;
    turn_queries(tile, q);
    for (int64_t key = first; key < end; key += KEYS) {
        const float *at[KEYS];
        for (int64_t i = 0; i < KEYS; i++) /* the last keys may be fewer: one of them again */
            at[i] = token_of(&tile->keys, key + i < end ? key + i : end - 1);
        for (int64_t line = 0; line < LINES; line += 2 * REGISTER_LANES)
            score(at, q + line, tile->head, scores + (key - first) * LINES + line);
    }
    int64_t seen_from[LINES], seen_to[LINES];
    for (int64_t line = 0; line < LINES; line++) {
        int64_t token = line / tile->group;
        int64_t position = tile->position + (token < tile->tokens ? token : tile->tokens - 1);
        seen_from[line] = position - tile->window + 1 - first;
        seen_to[line] = position + 1 - first;
    }
    float inverse[LINES];
    weigh(scores, end - first, seen_from, seen_to, tile->scale, inverse);
    write_values(tile, scores, first, end, inverse);
}

/* Attend from the tokens of each sequence to all before them and to themselves, or to the last
 * `window` of those.
 *
 * Shapes: q [tokens, ...] with `q_stride` numbers from token to token, of which the first are
 * [kv_heads, group, head]; caches [blocks, block_size, kv_heads, head]; block_table
 * [sequences, table_stride]; starts [sequences + 1]: the tokens of sequence s are
 * [starts[s], starts[s + 1]); lengths [sequences]: keys that its last token sees; out
 * [tokens, kv_heads, group, head]. `head` is a multiple of LANES, `group` at most LINES. Returns 0,
 * or 1 without memory. */
int paged_prompt_attention(const float *q, const float *k_cache, const float *v_cache,
                           const int32_t *block_table, const int32_t *starts,
                           const int32_t *lengths, float *out, float scale, int64_t window,
                           int64_t sequences, int64_t q_stride, int64_t table_stride,
                           int64_t kv_heads, int64_t group, int64_t head, int64_t block_size,
                           int threads)
{
    int64_t longest = 0, most = LINES / group, tiles = 0;
    for (int64_t s = 0; s < sequences; s++) {
        longest = lengths[s] > longest ? lengths[s] : longest;
        tiles += (starts[s + 1] - starts[s] + most - 1) / most * kv_heads;
    }
    size_t per_thread = (size_t)(head + longest + 2 * KEYS) * LINES * sizeof(float);
    char *memory = malloc(per_thread * (size_t)threads);
    if (!memory)
        return 1;
    int next = 0;
#pragma omp parallel num_threads(threads)
    {
        int me;
#pragma omp atomic capture
        me = next++;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < tiles; task++) {
            int64_t s = 0, before = 0, count;
            for (;; s++, before += count) {
                count = (starts[s + 1] - starts[s] + most - 1) / most * kv_heads;
                if (task < before + count)
                    break;
            }
            int64_t cut = (task - before) / kv_heads, kv_head = (task - before) % kv_heads;
            int64_t tokens = starts[s + 1] - starts[s], stride = kv_heads * head;
            int64_t token = starts[s] + cut * most;
            const int32_t *blocks = block_table + s * table_stride;
            const tile tile = {
                .q = q + token * q_stride + kv_head * group * head,
                .out = out + (token * kv_heads + kv_head) * group * head,
                .q_stride = q_stride,
                .out_stride = kv_heads * group * head,
                .tokens = tokens - cut * most < most ? tokens - cut * most : most,
                .group = group,
                .head = head,
                .position = lengths[s] - tokens + cut * most,
                .window = window,
                .scale = scale,
                .keys = {k_cache + kv_head * head, blocks, block_size, stride},
                .values = {v_cache + kv_head * head, blocks, block_size, stride},
            };
            attend(&tile, (float *)(memory + per_thread * (size_t)me));
        }
    }
    free(memory);
    return 0;
}
