/* Attention in bfloat16, of decodes and prompts alike, over blocks where they lie. See README.md.
 *
 * A task is some lines of one sequence that share a KV head, a line being one query head of one
 * token. Keys are taken a chunk at a time: scores of a chunk, their weights beside the largest
 * score so far, and the weighted sums of the values. Chunks begin at multiples of CHUNK whatever
 * the task, and a line's sums do not depend on the lines beside it: a token's attention is the same
 * to the last bit in a decode, in a prompt, and in any cut of it.
 *
 * Blocks hold pairs, as products take them (rope_and_store_kv_bf16), and are read a piece of 16
 * keys at a time. */

#include <math.h>
#include <stdlib.h>

#include "fp8.h"
#include "numbers.h"
#include "ops.h"

#define KEYS LANES                   /* of a piece */
#define PAIRS (2 * KEYS)             /* keys of a register of weights, on the widest machine */
#define CHUNK 512                    /* keys that are weighed at a time */
#define PIECES (CHUNK / KEYS)
#define LINE (CHUNK + 2 * KEYS)      /* from line to line: no power of two, which caches dislike */
#define LINES 32                     /* MAX_GROUP in native.py */
#define LEAST_EXPONENT (-126.0f)

#ifdef __AVX512F__ /* 32 registers: sums of 14 lines with two registers, or of 6 with four */
#define TALL 14
#define FLAT 6
#define FLAT_WIDE 4
#define TALL_WIDE 2
#else /* 16 registers: sums of 4 lines with two */
#define TALL 4
#define FLAT 4
#define FLAT_WIDE 2
#define TALL_WIDE 2
#endif

/* Sums of ROWS lines with WIDE registers over `groups` pairs: a [ROWS, LINE], from[c] and on
 * `stride` bytes the registers of column c. What lies at ahead[c] and on is asked for meanwhile:
 * blocks lie anywhere, so no prefetcher guesses them. */
static inline __attribute__((always_inline)) void
multiply(reg *sums, const int rows, const int wide, const bf16 *a, const char *const *from,
         const char *const *ahead, int64_t stride, int64_t groups)
{
    for (int64_t at = 0; at < groups * stride; at += stride, a += 2) {
        ints columns[FLAT_WIDE];
        _Pragma("GCC unroll 4") for (int c = 0; c < wide; c++) {
            columns[c] = load_ints(from[c] + at);
            __builtin_prefetch(ahead[c] + at, 0, 2);
        }
        _Pragma("GCC unroll 14") for (int r = 0; r < rows; r++) {
            ints pair = all_ints(group_of(a + r * LINE));
            _Pragma("GCC unroll 4") for (int c = 0; c < wide; c++)
                sums[r * wide + c] = dot_bf16(sums[r * wide + c], pair, columns[c]);
        }
    }
}

/* scores [ROWS, LINE] of WIDE registers of keys. */
typedef void score(const bf16 *q, const char *const *keys, const char *const *ahead, int64_t stride,
                   int64_t groups, float *scores);
/* sums [ROWS, LINE] *= factors, += weights [ROWS, LINE] x the values of `pieces`, `first` bytes on,
 * for WIDE registers of the head. */
typedef void add(const bf16 *weights, const char *const *pieces, int64_t count, int64_t first,
                 int64_t stride, const float *factors, float *sums);

#define TILE(ROWS, WIDE)                                                                           \
    static void score_##ROWS(const bf16 *q, const char *const *keys, const char *const *ahead,     \
                             int64_t stride, int64_t groups, float *scores)                        \
    {                                                                                              \
        reg sums[ROWS * WIDE];                                                                     \
        _Pragma("GCC unroll 28") for (int i = 0; i < ROWS * WIDE; i++) sums[i] = (reg){0};         \
        multiply(sums, ROWS, WIDE, q, keys, ahead, stride, groups);                                \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDE; c++)                                 \
                store_reg(scores + r * LINE + c * REGISTER_LANES, sums[r * WIDE + c]);             \
    }

#define ADD(NAME, ROWS, WIDE)                                                                      \
    static void NAME##_##ROWS(const bf16 *weights, const char *const *pieces, int64_t count,       \
                              int64_t first, int64_t stride, const float *factors, float *to)      \
    {                                                                                              \
        reg sums[ROWS * WIDE];                                                                     \
        _Pragma("GCC unroll 28") for (int i = 0; i < ROWS * WIDE; i++) sums[i] = (reg){0};         \
        for (int64_t i = 0; i < count; i++, weights += KEYS) {                                     \
            const char *from[WIDE], *ahead[WIDE];                                                  \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDE; c++) {                               \
                from[c] = pieces[i] + first + c * sizeof(reg);                                     \
                ahead[c] = pieces[i + AHEAD] + first + c * sizeof(reg);                            \
            }                                                                                      \
            multiply(sums, ROWS, WIDE, weights, from, ahead, stride, KEYS / 2);                    \
        }                                                                                          \
        _Pragma("GCC unroll 14") for (int r = 0; r < ROWS; r++)                                    \
            _Pragma("GCC unroll 4") for (int c = 0; c < WIDE; c++) {                               \
                float *at = to + r * LINE + c * REGISTER_LANES;                                    \
                store_reg(at, load_reg(at) * factors[r] + sums[r * WIDE + c]);                     \
            }                                                                                      \
    }

/* Pieces that values are asked for before they are read: what memory needs to answer. */
#define AHEAD 4

#define TILES_OF(ROWS, WIDE) TILE(ROWS, WIDE) ADD(add_wide, ROWS, WIDE) ADD(add_narrow, ROWS, 1)
TILES_OF(1, FLAT_WIDE)
TILES_OF(2, FLAT_WIDE)
TILES_OF(3, FLAT_WIDE)
TILES_OF(4, FLAT_WIDE)
#if TALL > FLAT
TILES_OF(5, FLAT_WIDE)
TILES_OF(6, FLAT_WIDE)
TILES_OF(8, TALL_WIDE)
TILES_OF(11, TALL_WIDE)
TILES_OF(14, TALL_WIDE)
#define BY_ROWS(NAME)                                                                              \
    {0, NAME##_1, NAME##_2, NAME##_3, NAME##_4, NAME##_5, NAME##_6, NAME##_8, NAME##_8,            \
     NAME##_11, NAME##_11, NAME##_11, NAME##_14, NAME##_14, NAME##_14}
#else
#define BY_ROWS(NAME) {0, NAME##_1, NAME##_2, NAME##_3, NAME##_4}
#endif

static score *const SCORE[TALL + 1] = BY_ROWS(score);
static add *const ADD_WIDE[TALL + 1] = BY_ROWS(add_wide);
static add *const ADD_NARROW[TALL + 1] = BY_ROWS(add_narrow);

static inline int64_t wide_of(int64_t rows)
{
    return rows > FLAT ? TALL_WIDE : FLAT_WIDE;
}

static inline ints bits_of_reg(reg lanes)
{
    ints bits;
    memcpy(&bits, &lanes, sizeof bits);
    return bits;
}

/* 2^x for x up to 0, within 2 parts of a million; at least 2^-126. Not a number stays so. */
static inline reg power_of_two(reg x)
{
    const reg least = (reg){0} + LEAST_EXPONENT;
    x = larger(least, x);
    const float rounding = 0x1.8p23f; /* leaves a whole number in the last bits */
    reg whole = x + rounding;
    reg r = x - (whole - rounding);
    reg p = ((0.00958285f * r + 0.05590643f) * r + 0.24024099f) * r + 0.69312419f;
    return as_floats(bits_of_reg(p * r + 1.0f) + (bits_of_reg(whole) << 23));
}

/* Where the numbers of a layer's keys and values are, and what the task reads of them. */
typedef struct {
    const char *keys, *values;                 /* of the task's KV head in block 0 */
    const uint8_t *k_exponents, *v_exponents;  /* as these, of codes of FP8; or null */
    const int32_t *blocks;
    int64_t block_size, kv_heads, head;
} cache;

typedef struct {
    cache cache;
    const bf16 *q; /* of the sequence's first token: [group, head], then `q_stride` on */
    bf16 *out;     /* as q, `out_stride` on */
    int64_t q_stride, out_stride;
    int64_t first, lines; /* of the lines of the sequence, [tokens, group] */
    int64_t group;
    int64_t position; /* of the sequence's first token */
    int64_t window;
    float scale;
} task;

typedef struct {
    bf16 q[LINES][LINE], weights[LINES][LINE];
    float scores[LINES][LINE], sums[LINES][LINE];
    float best[LINES], totals[LINES], factors[LINES];
    bf16 last[KEYS * MAX_HEAD]; /* the last piece of the values, without what lies behind them */
    const char *keys[PIECES + AHEAD], *values[PIECES + AHEAD];
} scratch; /* a tile computes some lines too many, of whatever is there, and nobody reads them */

/* Of FP8, a chunk's keys and values as pairs behind the scratch. */
static size_t scratch_bytes(int is_fp8, int64_t head)
{
    return sizeof(scratch) + (is_fp8 ? 2 * CHUNK * (size_t)head * sizeof(bf16) : 0);
}

/* Bytes from a pair of a key to its next, and from a pair of values to the next keys'. */
static inline int64_t key_stride(const cache *cache)
{
    return (cache->k_exponents ? KEYS : cache->block_size) * 2 * (int64_t)sizeof(bf16);
}

static inline int64_t value_stride(const cache *cache)
{
    return cache->head * 2 * (int64_t)sizeof(bf16);
}

/* The codes of a piece as pairs. */
static void unpack_piece(const cache *cache, int64_t key, bf16 *keys, bf16 *values)
{
    int64_t head = cache->head;
    int64_t token = cache->blocks[key / cache->block_size] * cache->block_size;
    token += key % cache->block_size;
    for (int64_t i = 0; i < KEYS; i++, token++) {
        float wide[MAX_HEAD];
        bf16 narrow[MAX_HEAD];
        int64_t at = token * cache->kv_heads;
        unpack((const uint8_t *)cache->keys + at * head, cache->k_exponents[at], wide, head);
        round_row(wide, narrow, head);
        for (int64_t d = 0; d < head; d += 2)
            memcpy(keys + d * KEYS + 2 * i, narrow + d, 2 * sizeof(bf16));
        unpack((const uint8_t *)cache->values + at * head, cache->v_exponents[at], wide, head);
        round_row(wide, narrow, head);
        for (int64_t d = 0; d < head; d++)
            values[(i / 2 * head + d) * 2 + i % 2] = narrow[d];
    }
}

/* Find the pieces of the keys [from, to), to's rounded up; returns how many there are. Behind them
 * are those that are read next: behind keys their values, behind values the chunk's after. */
static int64_t find_pieces(const task *task, scratch *scratch, int64_t from, int64_t to,
                           int64_t end)
{
    const cache *cache = &task->cache;
    int64_t count = 0, block = from / cache->block_size, offset = from % cache->block_size;
    int64_t bytes = cache->kv_heads * cache->block_size * cache->head * (int64_t)sizeof(bf16);
    bf16 *wide = (bf16 *)(scratch + 1);
    for (int64_t key = from; key < to; key += KEYS, count++) {
        if (cache->k_exponents) {
            bf16 *keys = wide + 2 * count * KEYS * cache->head;
            scratch->keys[count] = (char *)keys;
            scratch->values[count] = (char *)(keys + KEYS * cache->head);
            unpack_piece(cache, key, keys, keys + KEYS * cache->head);
            continue;
        }
        int64_t at = cache->blocks[block] * bytes;
        scratch->keys[count] = cache->keys + at + offset * 2 * (int64_t)sizeof(bf16);
        scratch->values[count] = cache->values + at + offset / 2 * value_stride(cache);
        offset += KEYS;
        if (offset == cache->block_size) {
            offset = 0;
            block++;
        }
    }
    for (int64_t i = 0; i < AHEAD; i++) {
        scratch->keys[count + i] = scratch->values[i < count ? i : count - 1];
        scratch->values[count + i] = scratch->values[count - 1];
        if (to < end && !cache->k_exponents)
            scratch->values[count + i] = cache->keys + cache->blocks[block] * bytes;
    }
    int64_t seen = to % KEYS;
    if (seen) { /* behind the last key lies anything, and 0 * NaN is NaN */
        int64_t pair = 2 * cache->head;
        memset(scratch->last, 0, (size_t)(KEYS * cache->head) * sizeof(bf16));
        memcpy(scratch->last, scratch->values[count - 1],
               (size_t)((seen + 1) / 2 * pair) * sizeof(bf16));
        if (seen % 2)
            for (int64_t d = 0; d < cache->head; d++)
                scratch->last[seen / 2 * pair + 2 * d + 1] = 0;
        scratch->values[count - 1] = (char *)scratch->last;
    }
    return count;
}

static void take_queries(const task *task, scratch *scratch)
{
    size_t bytes = (size_t)task->cache.head * sizeof(bf16);
    for (int64_t line = 0; line < task->lines; line++) {
        int64_t at = task->first + line;
        const bf16 *q = task->q + at / task->group * task->q_stride;
        memcpy(scratch->q[line], q + at % task->group * task->cache.head, bytes);
        memset(scratch->sums[line], 0, 2 * bytes);
        scratch->best[line] = -INFINITY;
        scratch->totals[line] = 0.0f;
    }
}

/* Turn a line's scores into weights, not yet divided by their sum, beside the largest score so far.
 * It sees the keys [from, to) of `keys`, all of them counted from the chunk's first. The sum is that
 * of the rounded weights. */
static inline void weigh(scratch *scratch, int64_t line, int64_t from, int64_t to, int64_t keys,
                         float scale)
{
    float *scores = scratch->scores[line];
    bf16 *weights = scratch->weights[line];
    if (from >= to) {
        memset(weights, 0, (size_t)keys * sizeof(bf16));
        scratch->factors[line] = 1.0f;
        return;
    }
    int64_t begin = from / PAIRS * PAIRS, end = (to + PAIRS - 1) / PAIRS * PAIRS;
    for (int64_t i = begin; i < from; i++)
        scores[i] = -INFINITY;
    for (int64_t i = to; i < end; i++)
        scores[i] = -INFINITY;
    reg lanes = (reg){0} - INFINITY;
    for (int64_t i = begin; i < end; i += REGISTER_LANES)
        lanes = larger(load_reg(scores + i), lanes);
    float before = scratch->best[line], best = before;
    for (int i = 0; i < REGISTER_LANES; i++)
        best = lanes[i] > best ? lanes[i] : best;
    for (int64_t i = begin; i < end; i += REGISTER_LANES)
        round_to_bf16(weights + i, power_of_two((load_reg(scores + i) - best) * scale));
    for (int64_t i = begin; i < from; i++)
        weights[i] = 0; /* the least power is more than nothing */
    for (int64_t i = to; i < end; i++)
        weights[i] = 0;
    reg sums = {0};
    const ints ones = all_ints(0x3F803F80);
    for (int64_t i = begin; i < end; i += 2 * REGISTER_LANES)
        sums = dot_bf16(sums, load_ints(weights + i), ones);
    memset(weights, 0, (size_t)begin * sizeof(bf16));
    if (end < keys)
        memset(weights + end, 0, (size_t)(keys - end) * sizeof(bf16));
    float factor = exp2f((before - best) * scale), total = 0.0f;
    for (int i = 0; i < REGISTER_LANES; i++)
        total += sums[i];
    scratch->totals[line] = scratch->totals[line] * factor + total;
    scratch->factors[line] = factor;
    scratch->best[line] = best;
}

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void score_chunk(const task *task, scratch *scratch, int64_t pieces)
{
    const int64_t per_piece = KEYS / REGISTER_LANES, columns = pieces * per_piece;
    const int64_t last = (pieces + AHEAD) * per_piece - 1;
    const int64_t stride = key_stride(&task->cache), groups = task->cache.head / 2;
    for (int64_t line = 0, rows; line < task->lines; line += rows) {
        rows = least(task->lines - line, TALL);
        int64_t wide = wide_of(rows);
        for (int64_t column = 0; column < columns; column += wide) {
            const char *from[FLAT_WIDE], *ahead[FLAT_WIDE];
            for (int64_t c = 0; c < wide; c++) {
                int64_t at = least(column + c, columns - 1), then = least(column + wide + c, last);
                from[c] = scratch->keys[at / per_piece] + at % per_piece * sizeof(reg);
                ahead[c] = scratch->keys[then / per_piece] + then % per_piece * sizeof(reg);
            }
            SCORE[rows](scratch->q[line], from, ahead, stride, groups,
                        scratch->scores[line] + column * REGISTER_LANES);
        }
    }
}

static void add_chunk(const task *task, scratch *scratch, int64_t pieces)
{
    const int64_t head = task->cache.head, stride = value_stride(&task->cache);
    for (int64_t line = 0, rows; line < task->lines; line += rows) {
        rows = least(task->lines - line, TALL);
        int64_t wide = wide_of(rows) * REGISTER_LANES;
        for (int64_t d = 0, width; d < head; d += width) {
            width = head - d >= wide ? wide : REGISTER_LANES;
            (width == wide ? ADD_WIDE : ADD_NARROW)[rows](
                scratch->weights[line], scratch->values, pieces, d * 2 * (int64_t)sizeof(bf16),
                stride, scratch->factors + line, scratch->sums[line] + d);
        }
    }
}

static void write_lines(const task *task, const scratch *scratch)
{
    int64_t head = task->cache.head;
    for (int64_t line = 0; line < task->lines; line++) {
        int64_t at = task->first + line;
        bf16 *to = task->out + at / task->group * task->out_stride + at % task->group * head;
        float inverse = 1.0f / scratch->totals[line];
        for (int64_t d = 0; d < head; d += REGISTER_LANES)
            round_to_bf16(to + d, load_reg(scratch->sums[line] + d) * inverse);
    }
}

static void attend(const task *task, scratch *scratch)
{
    int64_t at = task->position + task->first / task->group;
    int64_t end = task->position + (task->first + task->lines - 1) / task->group + 1;
    int64_t first = most(at + 1 - task->window, 0) / PAIRS * PAIRS;
    take_queries(task, scratch);
    for (int64_t chunk = first / CHUNK * CHUNK; chunk < end; chunk += CHUNK) {
        int64_t from = most(chunk, first), to = least(chunk + CHUNK, end);
        int64_t pieces = find_pieces(task, scratch, from, to, end);
        score_chunk(task, scratch, pieces);
        for (int64_t line = 0; line < task->lines; line++) {
            int64_t seen = task->position + (task->first + line) / task->group + 1;
            weigh(scratch, line, most(seen - task->window, from) - from, least(seen, to) - from,
                  pieces * KEYS, task->scale);
        }
        add_chunk(task, scratch, pieces);
    }
    write_lines(task, scratch);
}

/* What every task of a call shares. */
typedef struct {
    const bf16 *q;
    const void *k_cache, *v_cache;
    const uint8_t *k_exponents, *v_exponents;
    bf16 *out;
    float scale;
    int64_t window, q_stride, kv_heads, group, head, block_size;
} call;

/* The lines [first, first + lines) of a sequence of the call, whose first token is `token` of the
 * step and `position` of the sequence. */
static task task_of(const call *call, const int32_t *blocks, int64_t token, int64_t position,
                    int64_t kv_head, int64_t first, int64_t lines)
{
    int64_t per_block = call->k_exponents ? 1 : call->block_size * (int64_t)sizeof(bf16);
    int64_t width = call->group * call->head, skipped = kv_head * call->head * per_block;
    return (task){
        .cache = {(const char *)call->k_cache + skipped, (const char *)call->v_cache + skipped,
                  call->k_exponents ? call->k_exponents + kv_head : NULL,
                  call->v_exponents ? call->v_exponents + kv_head : NULL, blocks,
                  call->block_size, call->kv_heads, call->head},
        .q = call->q + token * call->q_stride + kv_head * width,
        .out = call->out + (token * call->kv_heads + kv_head) * width,
        .q_stride = call->q_stride,
        .out_stride = call->kv_heads * width,
        .first = first,
        .lines = lines,
        .group = call->group,
        .position = position,
        .window = call->window,
        .scale = call->scale * 1.44269504f,
    };
}

/* As paged_decode_attention, in bfloat16, over caches of pairs as rope_and_store_kv_bf16 writes
 * them, or over codes of FP8. `head` and `block_size` are multiples of KEYS, `head` at most
 * MAX_HEAD, `group` at most LINES. */
int paged_decode_attention_bf16(const bf16 *q, const void *k_cache, const void *v_cache,
                                const uint8_t *k_exponents, const uint8_t *v_exponents,
                                const int32_t *block_table, const int32_t *lengths, bf16 *out,
                                float scale, int64_t window, int64_t rows, int64_t q_stride,
                                int64_t table_stride, int64_t kv_heads, int64_t group, int64_t head,
                                int64_t block_size, int threads)
{
    const call call = {q,     k_cache, v_cache,  k_exponents, v_exponents, out,       scale,
                       window, q_stride, kv_heads, group,       head,        block_size};
    size_t per_thread = scratch_bytes(k_exponents != NULL, head);
    char *memory = malloc(per_thread * (size_t)threads);
    if (!memory)
        return 1;
    int next = 0;
#pragma omp parallel num_threads(threads)
    {
        int me;
#pragma omp atomic capture
        me = next++;
        scratch *own = (scratch *)(memory + per_thread * (size_t)me);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < rows * kv_heads; i++) {
            int64_t row = i / kv_heads;
            const task task = task_of(&call, block_table + row * table_stride, row,
                                      lengths[row] - 1, i % kv_heads, 0, group);
            attend(&task, own);
        }
    }
    free(memory);
    return 0;
}

/* As paged_prompt_attention, in bfloat16, over caches of pairs as rope_and_store_kv_bf16 writes
 * them, or over codes of FP8; of sizes as for decodes. */
int paged_prompt_attention_bf16(const bf16 *q, const void *k_cache, const void *v_cache,
                                const uint8_t *k_exponents, const uint8_t *v_exponents,
                                const int32_t *block_table, const int32_t *starts,
                                const int32_t *lengths, bf16 *out, float scale, int64_t window,
                                int64_t sequences, int64_t q_stride, int64_t table_stride,
                                int64_t kv_heads, int64_t group, int64_t head, int64_t block_size,
                                int threads)
{
    const call call = {q,     k_cache, v_cache,  k_exponents, v_exponents, out,       scale,
                       window, q_stride, kv_heads, group,       head,        block_size};
    int64_t tasks = 0;
    for (int64_t s = 0; s < sequences; s++)
        tasks += ((starts[s + 1] - starts[s]) * group + TALL - 1) / TALL * kv_heads;
    size_t per_thread = scratch_bytes(k_exponents != NULL, head);
    char *memory = malloc(per_thread * (size_t)threads);
    if (!memory)
        return 1;
    int next = 0;
#pragma omp parallel num_threads(threads)
    {
        int me;
#pragma omp atomic capture
        me = next++;
        scratch *own = (scratch *)(memory + per_thread * (size_t)me);
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < tasks; i++) {
            int64_t s = 0, before = 0, cuts, lines;
            for (;; s++, before += cuts * kv_heads) {
                lines = (starts[s + 1] - starts[s]) * group;
                cuts = (lines + TALL - 1) / TALL;
                if (i < before + cuts * kv_heads)
                    break;
            }
            int64_t kv_head = (i - before) / cuts, first = (i - before) % cuts * TALL;
            const task task = task_of(&call, block_table + s * table_stride, starts[s],
                                      lengths[s] - lines / group, kv_head, first,
                                      least(lines - first, TALL));
            attend(&task, own);
        }
    }
    free(memory);
    return 0;
}
