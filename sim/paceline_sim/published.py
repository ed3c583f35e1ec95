"""A device whose table of step times is a published measurement, not a model of tiles.

Llama-3-8B on one A100-SXM4-80GB, from Vidur's profiles (github.com/microsoft/vidur at 7d47513,
data/profiling/compute/a100/meta-llama/Meta-Llama-3-8B/mlp.csv, one worker): per layer, the medians
of both norms, of the four products, of rotary and activation and of two additions, added up. Of 451
token counts 85 are kept, with straight lines between. A count that measures less than a smaller one
is averaged with it, so that the table never falls. From what was measured, all 451 are 0.9 % off on
average and 4.8 % at most.

The profile holds neither attention nor the head nor the host. Those are published elsewhere:
* reading keys and values takes 1.947 times the datasheet's time, a layer costs 32.1 us, a request
  4.42 us and a step 126 us beside its work: BLIS' trained coefficients
  (github.com/inference-sim/inference-sim at f90a1e3, defaults.yaml, fitted to vLLM);
* attention of prompts reaches half of the datasheet: FlashAttention-2 reaches 50 to 73 % on an A100
  (arXiv 2307.08691), and the chunks of a step are short;
* the head is read at the 0.8 of the datasheet that the other tables assume.
"""

import numpy as np

from paceline_engine.hardware.devices import GPUS
from paceline_engine.hardware.model_size import Precision, size_of
from paceline_sim.dense_table import Array
from paceline_sim.hardware import LLAMA_8B, MAX_STEP_TOKENS, Hardware, Noise, StepCosts

_A100 = GPUS["a100"]
_SIZE = size_of(LLAMA_8B, Precision(2))
_PAIR_FLOPS = 4 * LLAMA_8B.hidden_size * LLAMA_8B.num_layers
_HEAD_EFFICIENCY = 0.8
_KV_OVER_DATASHEET = 1.947
_LAYER_MS, _REQUEST_MS, _STEP_MS = 0.0321, 0.00442, 0.126
_PREFILL_EFFICIENCY = 0.5

LAYER_US = (
    (1, 305),
    (32, 340),
    (56, 340),
    (64, 354),
    (72, 388),
    (128, 415),
    (136, 553),
    (192, 553),
    (200, 581),
    (256, 614),
    (264, 833),
    (384, 873),
    (392, 1039),
    (448, 1098),
    (512, 1098),
    (520, 1218),
    (528, 1256),
    (576, 1263),
    (584, 1474),
    (632, 1480),
    (648, 1566),
    (672, 1605),
    (760, 1633),
    (768, 1665),
    (776, 2004),
    (952, 2110),
    (960, 2125),
    (976, 2361),
    (1024, 2361),
    (1056, 2466),
    (1136, 2516),
    (1152, 2576),
    (1168, 2775),
    (1280, 2800),
    (1296, 2913),
    (1344, 2982),
    (1360, 3144),
    (1408, 3250),
    (1520, 3290),
    (1584, 3608),
    (1648, 3608),
    (1712, 3780),
    (1744, 3975),
    (1904, 4162),
    (2144, 4852),
    (2208, 4880),
    (2240, 5068),
    (2496, 5272),
    (2592, 5757),
    (2816, 6050),
    (2848, 6324),
    (3072, 6478),
    (3168, 6868),
    (3392, 7018),
    (3520, 7576),
    (3552, 8012),
    (4032, 8507),
    (4288, 9363),
    (5120, 10630),
    (5184, 11238),
    (5248, 11411),
    (5632, 11816),
    (6272, 13470),
    (6848, 14272),
    (7040, 15206),
    (7680, 16080),
    (7808, 16914),
    (8576, 17900),
    (8832, 19215),
    (9472, 19421),
    (9728, 20095),
    (9856, 21091),
    (10240, 21158),
    (10880, 23180),
    (11264, 23579),
    (11392, 24414),
    (12800, 26602),
    (12928, 27654),
    (13312, 27747),
    (13824, 28740),
    (13952, 29724),
    (14336, 29817),
    (14976, 31861),
    (16384, 34360),
    (32768, 68473),
)
"""Tokens of a step, and microseconds that one layer takes without its attention."""


def _dense_ms() -> Array:
    """Milliseconds by tokens [MAX_STEP_TOKENS + 1]; below the first count as at it."""
    tokens, layer_us = (np.array(column, np.float64) for column in zip(*LAYER_US, strict=True))
    every = np.arange(MAX_STEP_TOKENS + 1, dtype=np.float64)
    layers_ms = LLAMA_8B.num_layers * np.interp(every, tokens, layer_us / 1e3)
    head_ms = 2 * LLAMA_8B.vocab_size * LLAMA_8B.hidden_size / (_A100.gbps * _HEAD_EFFICIENCY * 1e6)
    return np.asarray(_STEP_MS + LLAMA_8B.num_layers * _LAYER_MS + head_ms + layers_ms, np.float64)


A100_8B_PROFILED = Hardware(
    name="A100_8B_PROFILED",
    device="cuda:NVIDIA A100-SXM4-80GB",
    size=_SIZE,
    dtype="bfloat16",
    num_kv_tokens=412_000,
    dense_ms=_dense_ms(),
    costs=StepCosts(
        context_ms=_KV_OVER_DATASHEET * _SIZE.kv_bytes_per_token / (_A100.gbps * 1e6),
        few_rows=0.0,
        rows_scale=1.0,
        long_context=0.0,
        context_scale=1.0,
        pair_ms=_PAIR_FLOPS / (_A100.tflops * _PREFILL_EFFICIENCY * 1e9),
        query_tile=128,
        row_ms=_REQUEST_MS,
        mixed_ms=0.0,
        graph_grid=8,
    ),
    noise=Noise(sigma=0.03, correlation=0.6, spike_chance=0.001),
)
