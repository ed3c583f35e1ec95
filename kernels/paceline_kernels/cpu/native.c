/* The decoder's ops on a CPU in float32, each in one pass over memory. See README.md.
 *
 * Plain loops that a compiler turns into the vector code of the machine it runs on. Sums are kept
 * in LANES partial sums, so that no flag has to allow the compiler to reorder additions. Threads
 * are those of torch: its OpenMP library is in the process already.
 */

#include <stddef.h>
#include <stdlib.h>

#include "fp8.h"
#include "ops.h"

#define MAX_HEADS 256

static inline float mean_square(const float *x, int64_t size)
{
    vec lanes = {0};
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES)
        lanes += load(x + i) * load(x + i);
    float sum = sum_of(lanes);
    for (; i < size; i++)
        sum += x[i] * x[i];
    return sum / (float)size;
}

/* out[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight; x[r] += residual[r] before, where there is
 * one. Shapes: x, residual, out [rows, size], weight [size]. */
void rms_norm(float *x, const float *residual, const float *weight, float *out, int64_t rows,
              int64_t size, float eps, int threads)
{
#pragma omp parallel for schedule(static) TEAM(rows * size)
    for (int64_t row = 0; row < rows; row++) {
        float *restrict in = x + row * size;
        float *restrict to = out + row * size;
        if (residual) {
            const float *restrict add = residual + row * size;
            for (int64_t i = 0; i < size; i++)
                in[i] += add[i];
        }
        float scale = 1.0f / sqrtf(mean_square(in, size) + eps);
        for (int64_t i = 0; i < size; i++)
            to[i] = in[i] * scale * weight[i];
    }
}

/* out[r] = f(x[r, :size]) * x[r, size:], f(a) = a / (1 + e^-z): silu with z = a; gelu, as tanh
 * approximates it, with z = 2 * sqrt(2 / pi) * (a + 0.044715 a^3), as 1 + tanh(z) is
 * 2 / (1 + e^-2z).
 * Shapes: x [rows, 2 * size], out [rows, size]. */
void gated_mul(const float *x, float *out, int64_t rows, int64_t size, int is_gelu, int threads)
{
#pragma omp parallel for schedule(static) TEAM(rows * size)
    for (int64_t row = 0; row < rows; row++) {
        const float *restrict gate = x + row * 2 * size;
        const float *restrict up = gate + size;
        float *restrict to = out + row * size;
        if (is_gelu)
            for (int64_t i = 0; i < size; i++) {
                float z = 1.59576912f * (gate[i] + 0.044715f * gate[i] * gate[i] * gate[i]);
                to[i] = gate[i] / (1.0f + exp_of(-z)) * up[i];
            }
        else
            for (int64_t i = 0; i < size; i++)
                to[i] = gate[i] / (1.0f + exp_of(-gate[i])) * up[i];
    }
}

/* Norm a head, where it has a norm, and turn each pair (x[i], x[i + half]) by its angle. */
static inline void norm_and_turn(const float *from, float *to, const float *cos_sin,
                                 const float *norm, float eps, int64_t half)
{
    float scale = norm ? 1.0f / sqrtf(mean_square(from, 2 * half) + eps) : 1.0f;
    for (int64_t i = 0; i < half; i++) {
        float a = from[i] * scale, b = from[i + half] * scale;
        if (norm) {
            a *= norm[i];
            b *= norm[i + half];
        }
        to[i] = a * cos_sin[i] - b * cos_sin[i + half];
        to[i + half] = b * cos_sin[i] + a * cos_sin[i + half];
    }
}

/* Norm and rotate q in place; norm and rotate k, and store it and v in their slots of the cache.
 *
 * Shapes: qkv [tokens, (q_heads + 2 * kv_heads) * head], positions and slots [tokens],
 * cos_sin [max_len, head] (cosines, then sines), caches [slots, kv_heads, head], float32, or codes
 * of FP8 where there are exponents [slots, kv_heads]; norms [head] or null. */
void rope_and_store_kv(float *qkv, const int64_t *positions, const int64_t *slots,
                       const float *cos_sin, const float *q_norm, const float *k_norm, float eps,
                       void *k_cache, void *v_cache, uint8_t *k_exponents, uint8_t *v_exponents,
                       int64_t tokens, int64_t q_heads, int64_t kv_heads, int64_t head, int threads)
{
    int64_t width = (q_heads + 2 * kv_heads) * head;
#pragma omp parallel for schedule(static) TEAM(tokens * width)
    for (int64_t token = 0; token < tokens; token++) {
        float *q = qkv + token * width;
        float *k = q + q_heads * head, *v = k + kv_heads * head;
        const float *angles = cos_sin + positions[token] * head;
        int64_t slot = slots[token] * kv_heads;
        float *to = k_exponents ? k : (float *)k_cache + slot * head;
        for (int64_t h = 0; h < q_heads; h++)
            norm_and_turn(q + h * head, q + h * head, angles, q_norm, eps, head / 2);
        for (int64_t h = 0; h < kv_heads; h++)
            norm_and_turn(k + h * head, to + h * head, angles, k_norm, eps, head / 2);
        if (!k_exponents) {
            memcpy((float *)v_cache + slot * head, v, kv_heads * head * sizeof(float));
            continue;
        }
        for (int64_t h = 0; h < kv_heads; h++) {
            int64_t at = slot + h;
            k_exponents[at] = pack(k + h * head, (uint8_t *)k_cache + at * head, head);
            v_exponents[at] = pack(v + h * head, (uint8_t *)v_cache + at * head, head);
        }
    }
}

/* Turn a row of scores into weights, not yet divided by their sum; returns 1 / sum. The first
 * `unseen` keys lie before the window and weigh nothing. */
static inline float weigh(float *row, int64_t unseen, int64_t keys)
{
    float best = row[unseen];
    for (int64_t i = unseen + 1; i < keys; i++)
        best = row[i] > best ? row[i] : best;
    for (int64_t i = 0; i < keys; i++)
        row[i] = exp_of(row[i] - best);
    for (int64_t i = 0; i < unseen; i++)
        row[i] = 0.0f;
    vec lanes = {0};
    int64_t i = 0;
    for (; i + LANES <= keys; i += LANES)
        lanes += load(row + i);
    float sum = sum_of(lanes);
    for (; i < keys; i++)
        sum += row[i];
    return 1.0f / sum;
}

/* What is read a block later, and is asked for meanwhile: blocks lie anywhere, so no prefetcher
 * guesses them. It goes to L2, a few lines at a time, for L1 has few misses in flight and waits
 * where it is asked for more. */
struct ahead {
    const char *token;
    int64_t line, lines, stride, tokens;
};

static inline void ask(struct ahead *ahead, int64_t count)
{
    for (; count > 0 && ahead->tokens > 0; count--) {
        __builtin_prefetch(ahead->token + ahead->line * 64, 0, 2);
        if (++ahead->line == ahead->lines) {
            ahead->line = 0;
            ahead->token += ahead->stride;
            ahead->tokens--;
        }
    }
}

/* Keys or values from one KV head on: float32, or codes of FP8 where there are exponents. */
struct cache {
    const char *heads; /* [blocks, block_size, kv_heads, head] */
    const uint8_t *exponents; /* [blocks, block_size, kv_heads], or null */
    int64_t block_size, kv_heads, head;
};

static inline struct cache cache_of(const void *heads, const uint8_t *exponents, int64_t first,
                                    int64_t block_size, int64_t kv_heads, int64_t head)
{
    int64_t width = exponents ? 1 : sizeof(float);
    return (struct cache){(const char *)heads + first * head * width,
                          exponents ? exponents + first : NULL, block_size, kv_heads, head};
}

static inline struct ahead ahead_of(const struct cache *from, int32_t block, int64_t share)
{
    int64_t width = from->exponents ? 1 : sizeof(float);
    int64_t stride = from->kv_heads * from->head * width;
    return (struct ahead){from->heads + block * from->block_size * stride, 0,
                          (share * from->head * width + 63) / 64, stride, from->block_size};
}

/* The heads of a block's first `count` tokens as float32, where they lie or in `tile`
 * [count, share, head]. */
static inline const float *block_of(const struct cache *from, int32_t block, int64_t count,
                                    int64_t share, float *tile)
{
    int64_t stride = from->kv_heads * from->head, width = from->exponents ? 1 : sizeof(float);
    const char *heads = from->heads + block * from->block_size * stride * width;
    if (!from->exponents)
        return (const float *)heads;
    const uint8_t *exponents = from->exponents + block * from->block_size * from->kv_heads;
    for (int64_t i = 0; i < count; i++)
        for (int64_t h = 0; h < share; h++)
            unpack((const uint8_t *)heads + i * stride + h * from->head,
                   exponents[i * from->kv_heads + h], tile + (i * share + h) * from->head,
                   from->head);
    return tile;
}

/* One row: q [kv_heads, group, head] over `keys` keys in `blocks`, of the KV heads given.
 *
 * First all scores, then the weights, then the weighted sum of the values: K and V are each read
 * once, front to back. `scores` holds [kv_heads, group, keys], `tile` a block of FP8. `group` and
 * `head` are constants where this is inlined for the common sizes. */
static inline __attribute__((always_inline)) void
attend(const float *q, const struct cache *k_cache, const struct cache *v_cache,
       const int32_t *blocks, int64_t unseen, int64_t keys, float *scores, float *tile, float *out,
       float scale, int64_t kv_heads, int64_t group, int64_t head)
{
    int64_t block_size = k_cache->block_size;
    int32_t first = blocks[0];
    int64_t stride = (k_cache->exponents ? kv_heads : k_cache->kv_heads) * head;
    for (int64_t start = 0; start < keys; start += block_size, blocks++) {
        int64_t count = keys - start < block_size ? keys - start : block_size;
        int is_last = start + block_size >= keys;
        struct ahead ahead = is_last ? ahead_of(v_cache, first, kv_heads)
                                     : ahead_of(k_cache, blocks[1], kv_heads);
        const float *k = block_of(k_cache, blocks[0], count, kv_heads, tile);
        for (int64_t i = 0; i < count; i++, k += stride) {
            ask(&ahead, ahead.lines);
            for (int64_t h = 0; h < kv_heads; h++)
                for (int64_t g = h * group; g < (h + 1) * group; g++) {
                    vec lanes = {0};
                    for (int64_t d = 0; d < head; d += LANES)
                        lanes += load(q + g * head + d) * load(k + h * head + d);
                    scores[g * keys + start + i] = sum_of(lanes) * scale;
                }
        }
    }
    blocks -= (keys + block_size - 1) / block_size;
    for (int64_t i = 0; i < kv_heads * group * head; i++)
        out[i] = 0.0f;
    float inverse[MAX_HEADS];
    for (int64_t g = 0; g < kv_heads * group; g++)
        inverse[g] = weigh(scores + g * keys, unseen, keys);
    for (int64_t start = 0; start < keys; start += block_size, blocks++) {
        int64_t count = keys - start < block_size ? keys - start : block_size;
        struct ahead ahead = ahead_of(v_cache, blocks[start + block_size < keys], kv_heads);
        int64_t pace = ahead.lines * block_size / (kv_heads * group) + 1;
        const float *v = block_of(v_cache, blocks[0], count, kv_heads, tile);
        for (int64_t h = 0; h < kv_heads; h++)
            for (int64_t g = h * group; g < (h + 1) * group; g++) {
                ask(&ahead, pace);
                for (int64_t d = 0; d < head; d += LANES) {
                    vec lanes = load(out + g * head + d);
                    for (int64_t i = 0; i < count; i++)
                        lanes += scores[g * keys + start + i] * load(v + i * stride + h * head + d);
                    store(out + g * head + d, lanes);
                }
            }
    }
    for (int64_t g = 0; g < kv_heads * group; g++)
        for (int64_t d = 0; d < head; d += LANES)
            store(out + g * head + d, load(out + g * head + d) * inverse[g]);
}

/* Attention of one query a row over the blocks that the row holds.
 *
 * Shapes: q [rows, ...] with `q_stride` numbers from row to row, of which the first are
 * [kv_heads, group, head]; caches [blocks, block_size, kv_heads, head], float32, or codes of FP8
 * where there are exponents [blocks, block_size, kv_heads]; block_table [rows, table_stride];
 * lengths [rows], each at least 1, of which the last `window` keys are seen; out
 * [rows, kv_heads, group, head]. `head` is a multiple of LANES, kv_heads * group at most
 * MAX_HEADS. Returns 0, or 1 without memory. */
int paged_decode_attention(const float *q, const void *k_cache, const void *v_cache,
                           const uint8_t *k_exponents, const uint8_t *v_exponents,
                           const int32_t *block_table, const int32_t *lengths, float *out,
                           float scale, int64_t window, int64_t rows, int64_t q_stride,
                           int64_t table_stride, int64_t kv_heads, int64_t group, int64_t head,
                           int64_t block_size, int threads)
{
    int64_t longest = 0;
    for (int64_t row = 0; row < rows; row++)
        longest = lengths[row] > longest ? lengths[row] : longest;
    /* Whole rows read memory in order; with few of them, threads share a row by its heads. */
    int64_t parts = rows >= 2 * threads ? 1 : kv_heads;
    int64_t share = kv_heads / parts;
    int64_t tile_numbers = k_exponents ? block_size * share * head : 0;
    size_t per_thread =
        (size_t)(share * group * longest + LANES + tile_numbers) * sizeof(float);
    char *memory = malloc(per_thread * (size_t)threads);
    if (!memory)
        return 1;
    int next = 0;
#pragma omp parallel num_threads(threads)
    {
        int me;
#pragma omp atomic capture
        me = next++;
        float *scores = (float *)(memory + per_thread * (size_t)me);
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < rows * parts; task++) {
            int64_t row = task / parts, kv_head = task % parts * share;
            int64_t first = kv_head * group * head;
            int64_t unseen = lengths[row] > window ? lengths[row] - window : 0;
            int64_t skipped = unseen / block_size;
            int64_t keys = lengths[row] - skipped * block_size;
            unseen -= skipped * block_size;
            const float *queries = q + row * q_stride + first;
            struct cache k = cache_of(k_cache, k_exponents, kv_head, block_size, kv_heads, head);
            struct cache v = cache_of(v_cache, v_exponents, kv_head, block_size, kv_heads, head);
            const int32_t *blocks = block_table + row * table_stride + skipped;
            float *to = out + row * kv_heads * group * head + first;
#define ATTEND(GROUP, HEAD)                                                                        \
    attend(queries, &k, &v, blocks, unseen, keys, scores + tile_numbers, scores, to, scale, share, \
           GROUP, HEAD)
            if (head == 64 && group == 3)
                ATTEND(3, 64);
            else if (head == 64)
                ATTEND(group, 64);
            else if (head == 128)
                ATTEND(group, 128);
            else
                ATTEND(group, head);
        }
    }
    free(memory);
    return 0;
}
