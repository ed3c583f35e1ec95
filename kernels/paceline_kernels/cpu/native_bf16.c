/* The decoder's ops on a CPU in bfloat16, each in one pass over memory; native.c has them in float32.
 *
 * Sums, angles and exponentials are float32, and a result is rounded where torch rounds it. */

#include <math.h>

#include "fp8.h"
#include "numbers.h"
#include "ops.h"

/* 1 / sqrt(mean(x^2) + eps) of a row; x += residual, rounded, before, where there is one. */
static inline float inverse_rms(bf16 *x, const bf16 *residual, int64_t size, float eps)
{
    reg even = {0}, odd = {0};
    for (int64_t i = 0; i < size; i += 2 * REGISTER_LANES) {
        int64_t left = size - i, behind = left - REGISTER_LANES;
        reg a = read_row(x + i, left), b = read_row(x + i + REGISTER_LANES, behind);
        if (residual) {
            a = rounded(a + read_row(residual + i, left));
            b = rounded(b + read_row(residual + i + REGISTER_LANES, behind));
            write_row(x + i, a, left);
            write_row(x + i + REGISTER_LANES, b, behind);
        }
        even += a * a;
        odd += b * b;
    }
    return 1.0f / sqrtf(total_of(even + odd) / (float)size + eps);
}

/* As rms_norm. A weight of bfloat16 meets rounded numbers, as the models were trained; a wide one,
 * float32, meets them unrounded. */
void rms_norm_bf16(bf16 *x, const bf16 *residual, const void *weight, int is_wide, bf16 *out,
                   int64_t rows, int64_t size, float eps, int threads)
{
#pragma omp parallel for schedule(static) TEAM(rows * size)
    for (int64_t row = 0; row < rows; row++) {
        bf16 *in = x + row * size, *to = out + row * size;
        float scale = inverse_rms(in, residual ? residual + row * size : NULL, size, eps);
        for (int64_t i = 0; i < size; i += REGISTER_LANES) {
            int64_t left = size - i;
            reg normed = read_row(in + i, left) * scale;
            if (!is_wide)
                normed = rounded(normed);
            write_row(to + i, normed * read_either(weight, is_wide, i, left), left);
        }
    }
}

/* As gated_mul. */
void gated_mul_bf16(const bf16 *x, bf16 *out, int64_t rows, int64_t size, int is_gelu, int threads)
{
    const float log2_e = 1.44269504f;
#pragma omp parallel for schedule(static) TEAM(rows * size)
    for (int64_t row = 0; row < rows; row++) {
        const bf16 *gates = x + row * 2 * size, *values = gates + size;
        for (int64_t i = 0; i < size; i += REGISTER_LANES) {
            int64_t left = size - i;
            reg gate = read_row(gates + i, left), z = gate;
            if (is_gelu)
                z = 1.59576912f * (gate + 0.044715f * gate * gate * gate);
            reg open = gate * inverse_of(1.0f + power_of_two(z * -log2_e));
            write_row(out + row * size + i, open * read_row(values + i, left), left);
        }
    }
}

/* Norm a head in place, where it has a norm, and turn each pair (x[i], x[i + half]) by its angle;
 * rounded at the end. */
static inline void norm_and_turn(bf16 *x, const float *cos_sin, const void *norm, int is_wide,
                                 float eps, int64_t half)
{
    float scale = norm ? inverse_rms(x, NULL, 2 * half, eps) : 1.0f;
    for (int64_t i = 0; i < half; i += REGISTER_LANES) {
        int64_t left = half - i;
        reg a = read_row(x + i, left), b = read_row(x + i + half, left);
        reg cosines = read_floats(cos_sin + i, left), sines = read_floats(cos_sin + i + half, left);
        if (norm) {
            a *= scale * read_either(norm, is_wide, i, left);
            b *= scale * read_either(norm, is_wide, i + half, left);
        }
        write_row(x + i, a * cosines - b * sines, left);
        write_row(x + i + half, b * cosines + a * sines, left);
    }
}

/* Write a head of one token into the pairs of its block, as attention_bf16.c reads them. */
static inline void store_key(const bf16 *key, bf16 *block, int64_t offset, int64_t block_size,
                             int64_t head)
{
    for (int64_t d = 0; d < head; d += 2)
        memcpy(block + d * block_size + 2 * offset, key + d, 2 * sizeof(bf16));
}

/* One half of each pair, and never the other, which another thread may be writing. */
static inline void store_value(const bf16 *value, bf16 *block, int64_t offset, int64_t head)
{
    bf16 *to = block + offset / 2 * 2 * head;
    int64_t d = 0;
#ifdef __AVX512BW__
    for (; d + 16 <= head; d += 16) {
        __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(value + d)));
        __m512i lanes = offset % 2 ? _mm512_slli_epi32(low, 16) : low;
        _mm512_mask_storeu_epi16(to + 2 * d, offset % 2 ? 0xAAAAAAAA : 0x55555555, lanes);
    }
#endif
    for (; d < head; d++)
        to[2 * d + offset % 2] = value[d];
}

/* The codes of a head, and its exponent. */
static inline uint8_t pack_head(const bf16 *head, void *codes, int64_t size)
{
    float wide[MAX_HEAD];
    for (int64_t i = 0; i < size; i++)
        wide[i] = float_of_bf16(head[i]);
    return pack(wide, codes, size);
}

/* As rope_and_store_kv; norms are float32 where they are wide. The caches hold pairs:
 * k_cache [blocks, kv_heads, head / 2, block_size, 2], of two numbers of a key,
 * v_cache [blocks, kv_heads, block_size / 2, head, 2], of two keys; or codes of FP8, as there.
 * `head` is even and at most MAX_HEAD, `block_size` is even. */
void rope_and_store_kv_bf16(bf16 *qkv, const int64_t *positions, const int64_t *slots,
                            const float *cos_sin, const void *q_norm, const void *k_norm,
                            int is_wide, float eps, void *k_cache, void *v_cache,
                            uint8_t *k_exponents, uint8_t *v_exponents, int64_t tokens,
                            int64_t q_heads, int64_t kv_heads, int64_t head, int64_t block_size,
                            int threads)
{
    int64_t width = (q_heads + 2 * kv_heads) * head;
#pragma omp parallel for schedule(static) TEAM(tokens * width)
    for (int64_t token = 0; token < tokens; token++) {
        bf16 *q = qkv + token * width;
        bf16 *k = q + q_heads * head, *v = k + kv_heads * head;
        const float *angles = cos_sin + positions[token] * head;
        int64_t slot = slots[token], block = slot / block_size, offset = slot % block_size;
        for (int64_t h = 0; h < q_heads; h++)
            norm_and_turn(q + h * head, angles, q_norm, is_wide, eps, head / 2);
        for (int64_t h = 0; h < kv_heads; h++) {
            const bf16 *key = k + h * head, *value = v + h * head;
            norm_and_turn(k + h * head, angles, k_norm, is_wide, eps, head / 2);
            if (k_exponents) {
                int64_t at = slot * kv_heads + h;
                k_exponents[at] = pack_head(key, (uint8_t *)k_cache + at * head, head);
                v_exponents[at] = pack_head(value, (uint8_t *)v_cache + at * head, head);
                continue;
            }
            int64_t at = (block * kv_heads + h) * block_size * head;
            store_key(key, (bf16 *)k_cache + at, offset, block_size, head);
            store_value(value, (bf16 *)v_cache + at, offset, head);
        }
    }
}
