/* Weights laid out for products, and rows brought to signed bytes. See README.md. */

#include "tiles.h"

/* Lay a weight [outputs, inputs] out as [panels, groups, PANEL, inputs of a group], the last panel
 * and the last group filled with zeros. Where `is_gated`, outputs are gates and, half of them on,
 * what these let through: then a panel holds some gates and behind them what they let through. */
#define PACK(NAME, FROM, TO, GROUP, OFFSET)                                                        \
    void NAME(const FROM *weight, TO *packed, int64_t outputs, int64_t inputs, int is_gated,       \
              int threads)                                                                         \
    {                                                                                              \
        int64_t panels = (outputs + PANEL - 1) / PANEL, groups = (inputs + GROUP - 1) / GROUP;     \
        _Pragma("omp parallel for schedule(static) num_threads(threads)")                          \
        for (int64_t p = 0; p < panels; p++)                                                       \
            for (int64_t lane = 0; lane < PANEL; lane++) {                                         \
                int64_t half = PANEL / 2, output = p * PANEL + lane;                               \
                int64_t gated = lane / half * (outputs / 2) + p * half + lane % half;              \
                const FROM *row = weight + (is_gated ? gated : output) * inputs;                   \
                TO *to = packed + (p * groups * PANEL + lane) * GROUP;                             \
                for (int64_t g = 0; g < groups; g++, to += PANEL * GROUP)                          \
                    for (int64_t i = 0; i < GROUP; i++) {                                          \
                        int is_there = output < outputs && g * GROUP + i < inputs;                 \
                        to[i] = (TO)(is_there ? row[g * GROUP + i] + OFFSET : OFFSET);             \
                    }                                                                              \
            }                                                                                      \
    }

PACK(pack_floats, float, float, 1, 0)
PACK(pack_bytes, int8_t, int8_t, 1, 0)
PACK(pack_bfloat16, bf16, bf16, 2, 0)
PACK(pack_unsigned_bytes, int8_t, uint8_t, 4, 128)
