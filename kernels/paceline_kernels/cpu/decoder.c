/* Every layer of a decoder in one call: what lies between two ops takes longer in Python than many of
 * the ops of a small model take themselves. See README.md. */

#include <time.h>

#include "ops.h"
#include "products.h"

/* A layer's weights and its part of the cache. Pointers that a family has no use for are null. */
typedef struct {
    const void *qkv_norm, *q_norm, *k_norm, *attention_post_norm, *mlp_norm, *mlp_post_norm;
    product qkv, out, gate_up, down;
    void *k_cache, *v_cache;
    uint8_t *k_exponents, *v_exponents;
    const float *cos_sin;
    int64_t window;
} layer;

typedef struct {
    const layer *layers;
    int64_t num_layers, hidden, mlp, q_heads, kv_heads, head, block_size;
    const void *norm; /* behind the last layer */
    float eps, score_scale;
    int32_t is_bf16, has_wide_norms;
    int32_t threads, unused;
} decoder;

/* T tokens of S sequences, decodes first, as docs/kv-layout.md says. */
typedef struct {
    int64_t tokens, sequences, decodes, table_stride, kept;
    const int64_t *positions, *slots;
    const int32_t *block_table, *bounds, *lengths;
    const int64_t *kept_rows; /* ascending: tokens whose state is read */
    void *residual;           /* [T, hidden]: the tokens' embeddings */
    void *x, *normed;         /* [T, hidden] */
    void *qkv;                /* [T, (q_heads + 2 kv_heads) * head] */
    void *attended;           /* [T, q_heads * head] */
    void *gated;              /* [T, mlp] */
    void *hidden;             /* [kept, hidden]: the result */
    double *seconds;          /* [NUM_PARTS]: what each part took is added; null without a profile */
} step;

/* What a step's time is told of; layers.py names them in this order. */
enum part { NORMS, QKV, ROTATION, DECODE_ATTENTION, PROMPT_ATTENTION, OUT, GATE_UP, DOWN, NUM_PARTS };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Do something as a part of the step. */
#define TIMED(PART, DO)                                                                            \
    do {                                                                                           \
        double began = step->seconds ? now() : 0.0;                                                \
        DO;                                                                                        \
        if (step->seconds)                                                                         \
            step->seconds[PART] += now() - began;                                                  \
    } while (0)

/* out = norm(x + residual), with the sum in x; or of x alone where residual is null. */
static void norm(const decoder *of, void *x, const void *residual, const void *weight, void *out,
                 int64_t rows)
{
    if (of->is_bf16)
        rms_norm_bf16(x, residual, weight, of->has_wide_norms, out, rows, of->hidden, of->eps,
                      of->threads);
    else
        rms_norm(x, residual, weight, out, rows, of->hidden, of->eps, of->threads);
}

static int multiply(const decoder *of, const product *by, const void *x, void *out, int64_t rows)
{
    return run_product(by, x, out, rows, of->is_bf16, of->threads);
}

static int attend(const decoder *of, const layer *layer, const step *step)
{
    int64_t width = (of->q_heads + 2 * of->kv_heads) * of->head, group = of->q_heads / of->kv_heads;
    int64_t prompts = step->sequences - step->decodes;
    const int32_t *table = step->block_table + step->decodes * step->table_stride;
    const int32_t *starts = step->bounds + step->decodes, *lengths = step->lengths + step->decodes;
    int failed = 0;
    if (of->is_bf16) {
        TIMED(ROTATION,
              rope_and_store_kv_bf16(step->qkv, step->positions, step->slots, layer->cos_sin,
                                     layer->q_norm, layer->k_norm, of->has_wide_norms, of->eps,
                                     layer->k_cache, layer->v_cache, layer->k_exponents,
                                     layer->v_exponents, step->tokens, of->q_heads, of->kv_heads,
                                     of->head, of->block_size, of->threads));
        if (step->decodes)
            TIMED(DECODE_ATTENTION,
                  failed |= paged_decode_attention_bf16(
                      step->qkv, layer->k_cache, layer->v_cache, layer->k_exponents,
                      layer->v_exponents, step->block_table, step->lengths, step->attended,
                      of->score_scale, layer->window, step->decodes, width, step->table_stride,
                      of->kv_heads, group, of->head, of->block_size, of->threads));
        if (prompts)
            TIMED(PROMPT_ATTENTION,
                  failed |= paged_prompt_attention_bf16(
                      step->qkv, layer->k_cache, layer->v_cache, layer->k_exponents,
                      layer->v_exponents, table, starts, lengths, step->attended, of->score_scale,
                      layer->window, prompts, width, step->table_stride, of->kv_heads, group,
                      of->head, of->block_size, of->threads));
        return failed;
    }
    TIMED(ROTATION,
          rope_and_store_kv(step->qkv, step->positions, step->slots, layer->cos_sin, layer->q_norm,
                            layer->k_norm, of->eps, layer->k_cache, layer->v_cache,
                            layer->k_exponents, layer->v_exponents, step->tokens, of->q_heads,
                            of->kv_heads, of->head, of->threads));
    if (step->decodes)
        TIMED(DECODE_ATTENTION,
              failed |= paged_decode_attention(
                  step->qkv, layer->k_cache, layer->v_cache, layer->k_exponents,
                  layer->v_exponents, step->block_table, step->lengths, step->attended,
                  of->score_scale, layer->window, step->decodes, width, step->table_stride,
                  of->kv_heads, group, of->head, of->block_size, of->threads));
    if (prompts)
        TIMED(PROMPT_ATTENTION,
              failed |= paged_prompt_attention(
                  step->qkv, layer->k_cache, layer->v_cache, table, starts, lengths,
                  step->attended, of->score_scale, layer->window, prompts, width,
                  step->table_stride, of->kv_heads, group, of->head, of->block_size, of->threads));
    return failed;
}

/* Move the kept rows [kept, size] to the front: kept_rows ascend, so none is overwritten early. */
static void keep_rows(const step *step, void *rows, int64_t bytes)
{
    for (int64_t i = 0; i < step->kept; i++)
        memmove((char *)rows + i * bytes, (char *)rows + step->kept_rows[i] * bytes, (size_t)bytes);
}

/* Norm what attention or the MLP adds by itself, before it joins the stream. */
static void norm_alone(const decoder *of, const step *step, void *x, const void *weight, int64_t rows)
{
    int64_t number = of->is_bf16 ? 2 : 4;
    TIMED(NORMS, norm(of, x, NULL, weight, step->normed, rows));
    memcpy(x, step->normed, (size_t)(rows * of->hidden * number));
}

/* Run every layer over a step's tokens, and the norm behind them. For a token whose state nobody
 * reads, the last layer computes only keys and values. Returns 0, or 1 without memory. */
int run_layers(const decoder *of, step *step)
{
    int64_t rows = step->tokens, number = of->is_bf16 ? 2 : 4;
    void *residual = step->residual, *x = step->x;
    int failed = 0;
    TIMED(NORMS, norm(of, residual, NULL, of->layers[0].qkv_norm, step->normed, rows));
    for (int64_t index = 0; index < of->num_layers && !failed; index++) {
        const layer *layer = of->layers + index;
        int is_last = index == of->num_layers - 1;
        TIMED(QKV, failed |= multiply(of, &layer->qkv, step->normed, step->qkv, rows));
        failed |= attend(of, layer, step);
        if (is_last && step->kept < step->tokens) {
            keep_rows(step, step->attended, of->q_heads * of->head * number);
            keep_rows(step, residual, of->hidden * number);
            rows = step->kept;
        }
        TIMED(OUT, failed |= multiply(of, &layer->out, step->attended, x, rows));
        if (layer->attention_post_norm)
            norm_alone(of, step, x, layer->attention_post_norm, rows);
        TIMED(NORMS, norm(of, x, residual, layer->mlp_norm, step->normed, rows));
        TIMED(GATE_UP, failed |= multiply(of, &layer->gate_up, step->normed, step->gated, rows));
        TIMED(DOWN, failed |= multiply(of, &layer->down, step->gated, residual, rows));
        if (layer->mlp_post_norm)
            norm_alone(of, step, residual, layer->mlp_post_norm, rows);
        /* The stream is in x now, and what joins it where the stream was. */
        TIMED(NORMS, norm(of, residual, x, is_last ? of->norm : layer[1].qkv_norm,
                          is_last ? step->hidden : step->normed, rows));
    }
    return failed;
}
