/* Rows brought to signed bytes: the largest number of each becomes 127 or -127. A row with a number
 * that is not finite gets a scale that is not a number. */

#pragma once

#include <math.h>

#include "dots.h"

typedef struct {
    float scale; /* by which the bytes are multiplied */
    int32_t sum; /* of the bytes */
} byte_row;

#define QUANTIZE(NAME, FROM, WIDEN)                                                                \
    static byte_row NAME(const FROM *row, int8_t *bytes, int64_t size)                             \
    {                                                                                              \
        float largest = 0.0f;                                                                      \
        int is_finite = 1;                                                                         \
        for (int64_t i = 0; i < size; i++) {                                                       \
            float number = fabsf(WIDEN(row[i]));                                                   \
            is_finite &= number <= 3.402823466e38f;                                                \
            largest = number > largest ? number : largest;                                         \
        }                                                                                          \
        float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;                                  \
        int32_t sum = 0;                                                                           \
        for (int64_t i = 0; i < size; i++) {                                                       \
            int32_t whole = is_finite ? (int32_t)nearbyintf(WIDEN(row[i]) * inverse) : 0;          \
            bytes[i] = (int8_t)whole;                                                              \
            sum += whole;                                                                          \
        }                                                                                          \
        return (byte_row){is_finite ? largest / 127.0f : NAN, sum};                                \
    }
