/* The ops that other C files and Python call; native.c and the attentions say what each computes.
 *
 * Arrays are contiguous. `threads` is how many may work; `group` is query heads on a KV head. What
 * returns an int returns 0, or 1 where there is no memory. */

#pragma once

#include "dots.h"

/* The largest head, in numbers, that the ops of bfloat16 take. */
#define MAX_HEAD 512

/* Whether the library was built for tiles of AMX and Linux lets this process use them. */
int has_tile_products(void);

void rms_norm(float *x, const float *residual, const float *weight, float *out, int64_t rows,
              int64_t size, float eps, int threads);
void rms_norm_bf16(bf16 *x, const bf16 *residual, const void *weight, int is_wide, bf16 *out,
                   int64_t rows, int64_t size, float eps, int threads);

void gated_mul(const float *x, float *out, int64_t rows, int64_t size, int is_gelu, int threads);
void gated_mul_bf16(const bf16 *x, bf16 *out, int64_t rows, int64_t size, int is_gelu, int threads);

void rope_and_store_kv(float *qkv, const int64_t *positions, const int64_t *slots,
                       const float *cos_sin, const float *q_norm, const float *k_norm, float eps,
                       void *k_cache, void *v_cache, uint8_t *k_exponents, uint8_t *v_exponents,
                       int64_t tokens, int64_t q_heads, int64_t kv_heads, int64_t head,
                       int threads);
void rope_and_store_kv_bf16(bf16 *qkv, const int64_t *positions, const int64_t *slots,
                            const float *cos_sin, const void *q_norm, const void *k_norm,
                            int is_wide, float eps, void *k_cache, void *v_cache,
                            uint8_t *k_exponents, uint8_t *v_exponents, int64_t tokens,
                            int64_t q_heads, int64_t kv_heads, int64_t head, int64_t block_size,
                            int threads);

int paged_decode_attention(const float *q, const void *k_cache, const void *v_cache,
                           const uint8_t *k_exponents, const uint8_t *v_exponents,
                           const int32_t *block_table, const int32_t *lengths, float *out,
                           float scale, int64_t window, int64_t rows, int64_t q_stride,
                           int64_t table_stride, int64_t kv_heads, int64_t group, int64_t head,
                           int64_t block_size, int threads);
int paged_decode_attention_bf16(const bf16 *q, const void *k_cache, const void *v_cache,
                                const uint8_t *k_exponents, const uint8_t *v_exponents,
                                const int32_t *block_table, const int32_t *lengths, bf16 *out,
                                float scale, int64_t window, int64_t rows, int64_t q_stride,
                                int64_t table_stride, int64_t kv_heads, int64_t group, int64_t head,
                                int64_t block_size, int threads);

int paged_prompt_attention(const float *q, const float *k_cache, const float *v_cache,
                           const int32_t *block_table, const int32_t *starts,
                           const int32_t *lengths, float *out, float scale, int64_t window,
                           int64_t sequences, int64_t q_stride, int64_t table_stride,
                           int64_t kv_heads, int64_t group, int64_t head, int64_t block_size,
                           int threads);
int paged_prompt_attention_bf16(const bf16 *q, const void *k_cache, const void *v_cache,
                                const uint8_t *k_exponents, const uint8_t *v_exponents,
                                const int32_t *block_table, const int32_t *starts,
                                const int32_t *lengths, bf16 *out, float scale, int64_t window,
                                int64_t sequences, int64_t q_stride, int64_t table_stride,
                                int64_t kv_heads, int64_t group, int64_t head, int64_t block_size,
                                int threads);
