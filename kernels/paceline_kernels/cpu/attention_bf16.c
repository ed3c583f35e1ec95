/* Attention in bfloat16, of decodes and prompts alike, over blocks where they lie. See README.md.
 *
 * A task is some lines of one sequence that share a KV head, a line being one query head of one
 * token. Keys are taken a chunk at a time: scores of a chunk, their weights beside the largest
 * score so far, and the weighted sums of the values. Chunks begin at multiples of CHUNK whatever
 * the task, and a line's sums do not depend on the lines beside it: a token's attention is the same
 * to the last bit in a decode, in a prompt, and in any cut of it, unless tiles of AMX compute it.
 *
 * Blocks hold pairs, as products take them (rope_and_store_kv_bf16), and are read a piece of 16
 * keys at a time. */

#include <math.h>
#include <stdlib.h>

#include "amx.h"
#include "fp8.h"
#include "pair_tiles.h"

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
    int by_tiles; /* of AMX */
} task;

typedef struct {
    bf16 q[LINES][LINE] __attribute__((aligned(64))), weights[LINES][LINE];
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
        for (int64_t d = 0; d < head; d += REGISTER_LANES)
            round_to_bf16(narrow + d, load_reg(wide + d));
        for (int64_t d = 0; d < head; d += 2)
            memcpy(keys + d * KEYS + 2 * i, narrow + d, 2 * sizeof(bf16));
        unpack((const uint8_t *)cache->values + at * head, cache->v_exponents[at], wide, head);
        for (int64_t d = 0; d < head; d += REGISTER_LANES)
            round_to_bf16(narrow + d, load_reg(wide + d));
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
    const char *next = scratch->values[count - 1];
    if (to < end && !cache->k_exponents)
        next = cache->keys + cache->blocks[block] * bytes;
    for (int64_t i = 0; i < AHEAD; i++) {
        scratch->keys[count + i] = scratch->values[i < count ? i : count - 1];
        scratch->values[count + i] = next;
    }
    for (int64_t at = 0; at < (to % KEYS + 1) / 2 * value_stride(cache); at += 64)
        __builtin_prefetch(scratch->values[count - 1] + at); /* for hide_rest */
    return count;
}

/* Behind the last key lies anything, and 0 * NaN is NaN: nothing is there instead. */
static void hide_rest(const cache *cache, scratch *scratch, int64_t pieces, int64_t seen)
{
    int64_t pair = 2 * cache->head;
    memset(scratch->last, 0, (size_t)(KEYS * cache->head) * sizeof(bf16));
    memcpy(scratch->last, scratch->values[pieces - 1],
           (size_t)((seen + 1) / 2 * pair) * sizeof(bf16));
    if (seen % 2)
        for (int64_t d = 0; d < cache->head; d++)
            scratch->last[seen / 2 * pair + 2 * d + 1] = 0;
    scratch->values[pieces - 1] = (char *)scratch->last;
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

/* Make the scores of PAIRS keys but those of [from, to) less than any other. */
static inline void hide_outside(float *scores, int64_t from, int64_t to)
{
    static const int32_t places[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const ints nothing = bits_of_reg((reg){0} - INFINITY);
    for (int i = 0; i < PAIRS; i += REGISTER_LANES) {
        ints place = load_ints(places) + i;
        ints is_seen = (place >= (int32_t)most(from, 0)) & (place < (int32_t)least(to, PAIRS));
        ints bits = load_ints(scores + i);
        store_ints(scores + i, (bits & is_seen) | (nothing & ~is_seen));
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
    if (begin < from)
        hide_outside(scores + begin, from - begin, to - begin);
    if (to < end)
        hide_outside(scores + end - PAIRS, from - end + PAIRS, to - end + PAIRS);
    reg even = (reg){0} - INFINITY, odd = even;
    for (int64_t i = begin; i < end; i += 2 * REGISTER_LANES) {
        even = larger(load_reg(scores + i), even);
        odd = larger(load_reg(scores + i + REGISTER_LANES), odd);
    }
    float before = scratch->best[line], best = largest_of(larger(even, odd));
    best = best > before ? best : before;
    reg sums = {0};
    const ints ones = all_ints(0x3F803F80);
    for (int64_t i = begin; i < end; i += 2 * REGISTER_LANES) {
        reg low = power_of_two(load_reg(scores + i) * scale - best * scale);
        reg high = power_of_two(load_reg(scores + i + REGISTER_LANES) * scale - best * scale);
        ints rounded = row_of(low, high);
        store_ints(weights + i, rounded);
        sums = dot_bf16(sums, rounded, ones);
    }
    if (begin)
        memset(weights, 0, (size_t)begin * sizeof(bf16));
    if (end < keys)
        memset(weights + end, 0, (size_t)(keys - end) * sizeof(bf16));
    float factor = before == -INFINITY ? 0.0f : exp2f((before - best) * scale);
    scratch->totals[line] = scratch->totals[line] * factor + total_of(sums);
    scratch->factors[line] = factor;
    scratch->best[line] = best;
}

static void score_chunk(const task *task, scratch *scratch, int64_t pieces)
{
    const int64_t per_piece = KEYS / REGISTER_LANES, columns = pieces * per_piece;
    const int64_t stride = key_stride(&task->cache), groups = task->cache.head / 2;
    const int64_t tall = task->lines > TALL ? FLAT : TALL, wide = wide_of(least(task->lines, tall));
    for (int64_t column = 0; column < columns; column += wide) {
        const char *from[FLAT_WIDE], *ahead[FLAT_WIDE];
        for (int64_t c = 0; c < wide; c++) {
            int64_t at = least(column + c, columns - 1), then = at + AHEAD * per_piece;
            from[c] = scratch->keys[at / per_piece] + at % per_piece * sizeof(reg);
            ahead[c] = scratch->keys[then / per_piece] + then % per_piece * sizeof(reg);
        }
        for (int64_t line = 0, rows; line < task->lines; line += rows) {
            rows = least(task->lines - line, tall);
            SCORE[rows](scratch->q[line], from, ahead, stride, groups,
                        scratch->scores[line] + column * REGISTER_LANES);
        }
    }
}

/* Add the values of a chunk, of which the first `skipped` pieces are not there, in parts that L1
 * holds: the same parts for every task. */
static void add_chunk(const task *task, scratch *scratch, int64_t skipped, int64_t pieces)
{
    static const float ones[TALL] = {[0 ... TALL - 1] = 1.0f};
    const int64_t head = task->cache.head, stride = value_stride(&task->cache);
    const int64_t part = most(NEAR_BYTES / (KEYS * head * (int64_t)sizeof(bf16)), 2);
    for (int64_t piece = 0, count; piece < pieces; piece += count) {
        count = least(part - (skipped + piece) % part, pieces - piece);
        for (int64_t line = 0, rows; line < task->lines; line += rows) {
            rows = least(task->lines - line, TALL);
            int64_t wide = wide_of(rows) * REGISTER_LANES;
            for (int64_t d = 0, width; d < head; d += width) {
                width = head - d >= wide ? wide : REGISTER_LANES;
                (width == wide ? ADD_WIDE : ADD_NARROW)[rows](
                    scratch->weights[line] + piece * KEYS, scratch->values + piece, count,
                    d * 2 * (int64_t)sizeof(bf16), stride, piece ? ones : scratch->factors + line,
                    scratch->sums[line] + d);
            }
        }
    }
}

#ifdef HAS_TILES

enum { TILE_TASK = 2 * TILE_SIDE }; /* lines */

/* Shape this thread's tiles: 0 to 3 hold sums, 4 and 5 lines of `pairs` pairs, 6 and 7 as many
 * pairs of keys or values. */
static void shape_tiles(int pairs)
{
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.line_bytes[i] = i == 4 || i == 5 ? (uint16_t)(4 * pairs) : TILE_LINE;
        shapes.rows[i] = i >= 6 ? (uint8_t)pairs : TILE_SIDE;
    }
    tile_shape(&shapes);
}

static inline void zero_sums(void)
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
}

/* Add the products of up to 32 lines, LINE numbers apart, with two columns. */
static inline void add_products(const bf16 *lines, const char *left, const char *right,
                                int64_t stride, int has_second)
{
    const int64_t line = LINE * sizeof(bf16);
    tile_load(4, lines, line);
    tile_load(6, left, stride);
    tile_dot_bf16(0, 4, 6);
    tile_load(7, right, stride);
    tile_dot_bf16(1, 4, 7);
    if (has_second) {
        tile_load(5, lines + TILE_SIDE * LINE, line);
        tile_dot_bf16(2, 5, 6);
        tile_dot_bf16(3, 5, 7);
    }
}

static inline void store_sums(float *to, int64_t floats, int has_second)
{
    const int64_t line = floats * (int64_t)sizeof(float);
    tile_store(0, to, line);
    tile_store(1, to + TILE_SIDE, line);
    if (has_second) {
        tile_store(2, to + TILE_SIDE * floats, line);
        tile_store(3, to + TILE_SIDE * floats + TILE_SIDE, line);
    }
}

static void score_chunk_by_tiles(const task *task, scratch *scratch, int64_t pieces)
{
    const int64_t stride = key_stride(&task->cache), groups = task->cache.head / 2;
    const int has_second = task->lines > TILE_SIDE;
    shape_tiles(TILE_SIDE);
    for (int64_t piece = 0; piece < pieces; piece += 2) {
        const char *left = scratch->keys[piece];
        const char *right = scratch->keys[least(piece + 1, pieces - 1)];
        zero_sums();
        for (int64_t g = 0; g < groups; g += TILE_SIDE)
            add_products(scratch->q[0] + 2 * g, left + g * stride, right + g * stride, stride,
                         has_second);
        store_sums(scratch->scores[0] + piece * KEYS, LINE, has_second);
    }
}

/* A piece fills half of a tile: its keys are those of one block, and the next lies elsewhere. */
static void add_chunk_by_tiles(const task *task, scratch *scratch, int64_t pieces)
{
    const int64_t stride = value_stride(&task->cache);
    const int has_second = task->lines > TILE_SIDE;
    float added[TILE_TASK][2 * TILE_SIDE];
    shape_tiles(KEYS / 2);
    for (int64_t d = 0; d < task->cache.head; d += 2 * TILE_SIDE) {
        zero_sums();
        for (int64_t piece = 0; piece < pieces; piece++) {
            const char *values = scratch->values[piece] + d * 2 * (int64_t)sizeof(bf16);
            add_products(scratch->weights[0] + piece * KEYS, values, values + TILE_LINE, stride,
                         has_second);
        }
        store_sums(added[0], 2 * TILE_SIDE, has_second);
        for (int64_t line = 0; line < task->lines; line++)
            for (int64_t i = 0; i < 2 * TILE_SIDE; i++) {
                float *sum = &scratch->sums[line][d + i];
                *sum = *sum * scratch->factors[line] + added[line][i];
            }
    }
}

#endif

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
#ifdef HAS_TILES
        (task->by_tiles ? score_chunk_by_tiles : score_chunk)(task, scratch, pieces);
#else
        score_chunk(task, scratch, pieces);
#endif
        for (int64_t line = 0; line < task->lines; line++) {
            int64_t seen = task->position + (task->first + line) / task->group + 1;
            weigh(scratch, line, most(seen - task->window, from) - from, least(seen, to) - from,
                  pieces * KEYS, task->scale);
        }
        if (to % KEYS)
            hide_rest(&task->cache, scratch, pieces, to % KEYS);
#ifdef HAS_TILES
        if (task->by_tiles) {
            add_chunk_by_tiles(task, scratch, pieces);
            continue;
        }
#endif
        add_chunk(task, scratch, (from - chunk) / KEYS, pieces);
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
    char *memory = aligned_alloc(64, per_thread * (size_t)threads);
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

/* Lines of a task, where the sequence has so many: more than TALL go by tiles. */
static int64_t lines_of_task(int64_t lines, int64_t head)
{
#ifdef HAS_TILES
    if (lines > TALL && head % (2 * TILE_SIDE) == 0 && has_tile_products())
        return TILE_TASK;
#endif
    (void)lines, (void)head;
    return TALL;
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
    for (int64_t s = 0; s < sequences; s++) {
        int64_t lines = (starts[s + 1] - starts[s]) * group, each = lines_of_task(lines, head);
        tasks += (lines + each - 1) / each * kv_heads;
    }
    size_t per_thread = scratch_bytes(k_exponents != NULL, head);
    char *memory = aligned_alloc(64, per_thread * (size_t)threads);
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
            int64_t s = 0, before = 0, cuts, lines, each;
            for (;; s++, before += cuts * kv_heads) {
                lines = (starts[s + 1] - starts[s]) * group;
                each = lines_of_task(lines, head);
                cuts = (lines + each - 1) / each;
                if (i < before + cuts * kv_heads)
                    break;
            }
            int64_t kv_head = (i - before) / cuts, first = (i - before) % cuts * each;
            task task = task_of(&call, block_table + s * table_stride, starts[s],
                                lengths[s] - lines / group, kv_head, first,
                                least(lines - first, each));
            task.by_tiles = each > TALL;
            attend(&task, own);
        }
#ifdef HAS_TILES
        if (has_tile_products())
            tile_free();
#endif
    }
    free(memory);
    return 0;
}
