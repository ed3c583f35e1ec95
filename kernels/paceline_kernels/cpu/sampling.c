/* The likeliest token of each row. See README.md. */

#include "dots.h"

/* Floats as whole numbers of the same order: those below zero have their other bits turned. */
static inline ints in_order(ints bits)
{
    return bits ^ ((bits >> 31) & 0x7FFFFFFF);
}

/* tokens[r] = the first of the largest logits of row r, or -1 where the largest is not finite or some
 * are not numbers. Shapes: logits [rows, size], tokens [rows]. */
void likeliest(const float *logits, int64_t *tokens, int64_t rows, int64_t size, int threads)
{
#pragma omp parallel for schedule(static) TEAM(rows > 1 ? rows * size : 0)
    for (int64_t row = 0; row < rows; row++) {
        const float *at = logits + row * size;
        ints most = all_ints(INT32_MIN), bad = {0};
        int64_t i = 0;
        for (; i + REGISTER_LANES <= size; i += REGISTER_LANES) {
            ints bits = as_ints(load_reg(at + i) + 0.0f); /* one zero, not two */
            ints order = in_order(bits), is_more = order > most;
            most = (order & is_more) | (most & ~is_more);
            bad |= (bits & 0x7FFFFFFF) > 0x7F800000;
        }
        int32_t best = INT32_MIN, is_bad = 0;
        for (int lane = 0; lane < REGISTER_LANES; lane++) {
            best = most[lane] > best ? most[lane] : best;
            is_bad |= bad[lane];
        }
        for (; i < size; i++) {
            int32_t bits = as_ints((reg){at[i]} + 0.0f)[0], order = in_order(all_ints(bits))[0];
            best = order > best ? order : best;
            is_bad |= (bits & 0x7FFFFFFF) > 0x7F800000;
        }
        float value;
        int32_t back = best ^ ((best >> 31) & 0x7FFFFFFF);
        memcpy(&value, &back, sizeof value);
        int64_t found = 0;
        while (found < size && at[found] != value)
            found++;
        int is_finite = (back & 0x7F800000) != 0x7F800000;
        tokens[row] = is_bad || !is_finite ? -1 : found;
    }
}
