"""Simulated devices of few parameters, which a search can fit to published figures.

    dense = host + (weights^4 + (token * tokens)^4)^(1/4)        milliseconds

A step reads all weights or computes all tokens, whichever takes longer, with a soft corner.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from paceline_engine.hardware.model_size import ModelSize, Precision, size_of
from paceline_sim.hardware import LLAMA_8B, MAX_STEP_TOKENS, Hardware, Noise, StepCosts

_HOST_MS: Final = 0.8
_NOISE: Final = Noise(sigma=0.03, correlation=0.6, spike_chance=0.001)
_LLAMA_70B: Final = replace(
    LLAMA_8B, num_layers=80, hidden_size=8192, intermediate_size=28_672, num_q_heads=64, windows=()
)
_DENSE_4B: Final = replace(
    LLAMA_8B, num_layers=36, hidden_size=2560, intermediate_size=9728, windows=()
)
"""A dense model of 4 billion parameters, the size of the published one."""


@dataclass(frozen=True, slots=True)
class Speed:
    """What is fitted of a device."""

    weights_ms: float
    """Reading all weights, once a step."""
    token_us: float
    """Computing one token of a step, microseconds."""
    context_ns: float
    """Reading one token's keys and values, nanoseconds."""


@dataclass(frozen=True, slots=True)
class KneeDevice:
    """What is not fitted of a device."""

    name: str
    device: str
    size: ModelSize
    dtype: str
    pair_ms: float
    """Per attention pair of prefill, at half of the datasheet's arithmetic."""

    def hardware(self, speed: Speed, num_kv_tokens: int) -> Hardware:
        """Return the simulator's device."""
        tokens = np.arange(MAX_STEP_TOKENS + 1, dtype=np.float64)
        compute_ms = speed.token_us / 1e3 * tokens
        return Hardware(
            name=self.name,
            device=self.device,
            size=self.size,
            dtype=self.dtype,
            num_kv_tokens=num_kv_tokens,
            dense_ms=_HOST_MS + (speed.weights_ms**4 + compute_ms**4) ** 0.25,
            costs=StepCosts(
                context_ms=speed.context_ns / 1e6,
                few_rows=0.0,
                rows_scale=1.0,
                long_context=0.0,
                context_scale=1.0,
                pair_ms=self.pair_ms,
                query_tile=128,
                row_ms=0.006,
                mixed_ms=0.35,
                graph_grid=8,
            ),
            noise=_NOISE,
        )


def _pair_ms(model_flops: float, tflops: float) -> float:
    return model_flops / (tflops * 0.5 * 1e9)


H100_70B_FP8: Final = KneeDevice(
    "H100_70B_FP8_TP2",
    "cuda:NVIDIA H100 80GB HBM3",
    size_of(_LLAMA_70B, Precision(1)),
    "float8",
    _pair_ms(4 * 64 * 128 * 80, 2 * 989),
)
RTX_4B: Final = KneeDevice(
    "RTX_PRO_6000_4B",
    "cuda:NVIDIA RTX PRO 6000 Blackwell",
    size_of(_DENSE_4B, Precision(2)),
    "bfloat16",
    _pair_ms(4 * 32 * 128 * 36, 500),
)
