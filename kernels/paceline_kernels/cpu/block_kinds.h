/* GGUF's quantised blocks: what their bits mean, and how a row of them becomes codes and scales.
 *
 * Every kind comes down to `scale * (code - centre)` or `scale * code + least`, with a code of 4 to
 * 8 bits and a scale for each 32 inputs of an output, or for each 16. Kinds whose scales are codes
 * themselves multiply them by numbers that 256 inputs share. */

#pragma once

#include <stdint.h>
#include <string.h>

enum block_kind { Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, NUM_BLOCK_KINDS };

/* How a chunk's scales are kept: a half for each block; this and the least value; a byte of each,
 * times two halves that the chunk shares; or a signed byte for each half of a block, times one. */
enum scaling { PLAIN_SCALES, WITH_LEAST, BYTES_WITH_LEAST, BYTES_OF_HALVES };

enum { BLOCK = 32, CHUNK = 256, CHUNK_BLOCKS = CHUNK / BLOCK };

typedef struct {
    int inputs, bytes; /* of a block in the file */
    int bits;          /* of a code */
    int raise;         /* what is added to a code, so that its centre is 128; 0 with a least value */
    enum scaling scaling;
} block_form;

static const block_form FORMS[NUM_BLOCK_KINDS] = {
    [Q4_0] = {32, 18, 4, 120, PLAIN_SCALES},      [Q4_1] = {32, 20, 4, 0, WITH_LEAST},
    [Q5_0] = {32, 22, 5, 112, PLAIN_SCALES},      [Q5_1] = {32, 24, 5, 0, WITH_LEAST},
    [Q8_0] = {32, 34, 8, 0, PLAIN_SCALES},        [Q4_K] = {256, 144, 4, 0, BYTES_WITH_LEAST},
    [Q5_K] = {256, 176, 5, 0, BYTES_WITH_LEAST},  [Q6_K] = {256, 210, 6, 96, BYTES_OF_HALVES},
};

/* Up to 256 inputs of one output. */
typedef struct {
    uint8_t codes[CHUNK];
    uint16_t scales[CHUNK_BLOCKS], leasts[CHUNK_BLOCKS]; /* halves, of each block or in [0] of all */
    uint8_t scale_bytes[2 * CHUNK_BLOCKS], least_bytes[CHUNK_BLOCKS];
} opened_chunk;

static inline uint16_t half_at(const uint8_t *from)
{
    uint16_t half;
    memcpy(&half, from, sizeof half);
    return half;
}

/* The low four bits of `count` bytes, then the high four. */
static inline void open_nibbles(const uint8_t *from, uint8_t *codes, int count)
{
    for (int i = 0; i < count; i++) {
        codes[i] = from[i] & 15;
        codes[count + i] = from[i] >> 4;
    }
}

/* Eight scales and eight least values of six bits each, in twelve bytes. */
static inline void open_six_bits(const uint8_t *from, opened_chunk *to)
{
    for (int i = 0; i < 4; i++) {
        to->scale_bytes[i] = from[i] & 63;
        to->least_bytes[i] = from[4 + i] & 63;
        to->scale_bytes[4 + i] = (from[8 + i] & 15) | from[i] >> 6 << 4;
        to->least_bytes[4 + i] = from[8 + i] >> 4 | from[4 + i] >> 6 << 4;
    }
}

/* Block `number` of a chunk of the kinds of 32 inputs. */
static inline void open_block(enum block_kind kind, const uint8_t *from, int number,
                              opened_chunk *to)
{
    uint8_t *codes = to->codes + number * BLOCK;
    to->scales[number] = half_at(from);
    from += sizeof(uint16_t);
    if (FORMS[kind].scaling == WITH_LEAST) {
        to->leasts[number] = half_at(from);
        from += sizeof(uint16_t);
    }
    if (kind == Q8_0) {
        for (int i = 0; i < BLOCK; i++)
            codes[i] = from[i] ^ 128; /* signed, and 128 more */
        return;
    }
    const uint8_t *fifth = from;
    from += FORMS[kind].bits == 5 ? BLOCK / 8 : 0;
    open_nibbles(from, codes, BLOCK / 2);
    if (FORMS[kind].bits == 5)
        for (int i = 0; i < BLOCK; i++)
            codes[i] |= (fifth[i / 8] >> i % 8 & 1) << 4;
}

static inline void open_six_bit_codes(const uint8_t *from, opened_chunk *to)
{
    const uint8_t *low = from, *high = from + CHUNK / 2;
    memcpy(to->scale_bytes, high + CHUNK / 4, sizeof to->scale_bytes);
    to->scales[0] = half_at(high + CHUNK / 4 + sizeof to->scale_bytes);
    for (int half = 0; half < 2; half++, low += CHUNK / 4, high += CHUNK / 8) {
        uint8_t *codes = to->codes + half * CHUNK / 2;
        open_nibbles(low, codes, CHUNK / 4);
        for (int i = 0; i < CHUNK / 2; i++)
            codes[i] |= (high[i % BLOCK] >> i / BLOCK * 2 & 3) << 4;
    }
}

/* The next `blocks` times 32 inputs of a row of the file. */
static inline void open_chunk(enum block_kind kind, const uint8_t *from, int blocks,
                              opened_chunk *to)
{
    if (kind < Q4_K) {
        for (int b = 0; b < blocks; b++)
            open_block(kind, from + b * FORMS[kind].bytes, b, to);
        return;
    }
    if (kind == Q6_K) {
        open_six_bit_codes(from, to);
        return;
    }
    to->scales[0] = half_at(from);
    to->leasts[0] = half_at(from + 2);
    open_six_bits(from + 4, to);
    const uint8_t *fifth = from + 16, *low = kind == Q5_K ? fifth + CHUNK / 8 : fifth;
    for (int two = 0; two < CHUNK; two += 2 * BLOCK)
        open_nibbles(low + two / 2, to->codes + two, BLOCK);
    if (kind == Q5_K)
        for (int i = 0; i < CHUNK; i++)
            to->codes[i] |= (fifth[i % BLOCK] >> i / BLOCK & 1) << 4;
}
