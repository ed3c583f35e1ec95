/* Heads of the KV cache in FP8: E4M3 codes and a power of two, as paceline_kernels/fp8.py says.
 *
 * Loops without branches over the bits of a float32, so that a compiler makes vector code of them.
 */

#include <stdint.h>
#include <string.h>

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Write the codes of a head and return its exponent; 255 where there is something that is not a
 * number. */
static inline uint8_t pack(const float *head, uint8_t *codes, int64_t size)
{
    uint32_t largest = 0; /* as whole numbers: NaN is the largest of all, then infinity */
    for (int64_t i = 0; i < size; i++) {
        uint32_t bits = bits_of(head[i]) & 0x7FFFFFFF;
        largest = bits > largest ? bits : largest;
    }
    int32_t exponent = (int32_t)((largest + 0x1FFFFF) >> 23) - 8;
    exponent = exponent < 1 ? 1 : exponent;
    float inverse = float_of((uint32_t)(254 - exponent) << 23);
    for (int64_t i = 0; i < size; i++) {
        uint32_t bits = bits_of(head[i] * inverse), magnitude = bits & 0x7FFFFFFF;
        /* Of 24 bits 4 stay; the exponent counts from 7 instead of from 127. */
        uint32_t normal = ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - (120 << 3);
        /* Below 2^-6 codes are multiples of 2^-9, the last bit of 2^14. */
        uint32_t small = bits_of(float_of(magnitude) + 16384.0f) - 0x46800000;
        codes[i] = (uint8_t)((magnitude < 0x3C800000 ? small : normal) | (bits >> 24 & 0x80));
    }
    return largest >= 0x7F800000 ? 255 : (uint8_t)exponent;
}

/* Write the numbers of a head. */
static inline void unpack(const uint8_t *codes, uint8_t exponent, float *head, int64_t size)
{
    float scale = float_of((uint32_t)exponent << 23 | (uint32_t)(exponent == 255) << 22);
    for (int64_t i = 0; i < size; i++) {
        uint32_t code = codes[i], magnitude = code & 0x7F;
        float normal = float_of((magnitude << 20) + (120u << 23));
        float small = (float)(int32_t)magnitude * 0x1p-9f;
        uint32_t bits = bits_of(magnitude < 8 ? small : normal) | (code & 0x80) << 24;
        head[i] = float_of(bits) * scale;
    }
}
