"""Milliseconds of a step's matrix products, for every number of tokens: a table with stairs.

Each product of a layer is cut into output tiles, which the device's cores take in waves; a last
wave that is half empty costs as much as a full one. So time goes up in stairs with the tokens:

    compute = min over tile shapes of  waves * flops per tile / (flop/s of a core * efficiency)
    memory  = weight bytes / (bandwidth * efficiency)
    product = (compute^4 + memory^4)^(1/4)

Efficiencies are set to published figures:
* H100, Llama-2-7B: 20.5 us a token at 1,024 tokens, 22.9 at 1,408, 19.7 at 2,048 (Vidur's profiles,
  github.com/microsoft/vidur, data/profiling/compute), which is 0.64 of the datasheet's FLOP/s;
* A100, Llama-3-8B: 62 ms a layer at 32,768 tokens, 0.74 of the datasheet's, and 5.6 ms for what
  is not a product: norms, rotary, activation, additions (the same source);
* H100, Llama-3.1-8B: a decode step of one sequence in 6.44 ms (vLLM's blog, 2026-04-22).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline_engine.core.model_config import ModelConfig
from paceline_engine.hardware.devices import Device
from paceline_engine.hardware.model_size import rank_part

Array = npt.NDArray[np.float64]

_TILES = ((128, 256, 1.0), (128, 128, 0.92), (64, 128, 0.72), (64, 64, 0.5), (16, 64, 0.2))
"""Rows, columns, and the share of the best tile's speed that one of this shape reaches."""
_ELEMENT_PASSES = 33
"""Times that a layer's activations pass through memory outside its products."""
_ELEMENT_EFFICIENCY = 0.8
_THROTTLE, _THROTTLE_TOKENS = 0.06, 3000.0
"""Long products draw the most power: clocks fall by so much, over so many tokens."""
_ONE_SHOT_BYTES = 512 * 1024
"""Above it an all-reduce goes in two phases (vLLM's custom all-reduce on four NVLinked GPUs)."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device, and what is reached of its datasheet."""

    device: Device
    num_cores: int
    compute_efficiency: float
    memory_efficiency: float
    link_gbps: float = 0.0
    """What an all-reduce moves per second."""

    @property
    def flops_per_core(self) -> float:
        """FLOP of one core in a millisecond."""
        return self.device.tflops * self.compute_efficiency * 1e9 / self.num_cores

    @property
    def bytes_per_ms(self) -> float:
        """Weights read in a millisecond."""
        return self.device.gbps * self.memory_efficiency * 1e6


def dense_table(
    accelerator: Accelerator, model: ModelConfig, *, host_ms: float, max_tokens: int, ranks: int = 1
) -> Array:
    """Milliseconds by tokens [max_tokens + 1]; index 0 is what an empty step would take.

    One of `ranks` accelerators holds its part of the layers, and its share of the head.
    """
    shard, hidden = rank_part(model, ranks), model.hidden_size
    tokens = np.arange(max_tokens + 1, dtype=np.float64)
    layer = np.zeros_like(tokens)
    for columns, depth in _products(shard):
        layer += _product_ms(accelerator, tokens, columns, depth)
    element_bytes = tokens * _ELEMENT_PASSES * hidden * 2
    layer += element_bytes / (accelerator.device.gbps * _ELEMENT_EFFICIENCY * 1e6)
    if ranks > 1:
        layer += 2 * _all_reduce_ms(accelerator, tokens * hidden * 2)
    head_ms = 2 * model.vocab_size * hidden / ranks / accelerator.bytes_per_ms
    throttled = 1 + _THROTTLE * (1 - np.exp(-tokens / _THROTTLE_TOKENS))
    return np.asarray(host_ms + head_ms + model.num_layers * layer * throttled, np.float64)


def _products(model: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Columns and depth of each weight matrix of a layer: qkv, output, gate and up, down."""
    hidden, attended = model.hidden_size, model.num_q_heads * model.head_size
    return (
        (model.qkv_size, hidden),
        (hidden, attended),
        (2 * model.intermediate_size, hidden),
        (hidden, model.intermediate_size),
    )


def _product_ms(accelerator: Accelerator, tokens: Array, columns: int, depth: int) -> Array:
    compute = np.full_like(tokens, np.inf)
    for tile_rows, tile_columns, speed in _TILES:
        tiles = np.ceil(np.maximum(tokens, 1) / tile_rows) * np.ceil(columns / tile_columns)
        tile_ms = 2 * tile_rows * tile_columns * depth / (accelerator.flops_per_core * speed)
        compute = np.minimum(compute, np.ceil(tiles / accelerator.num_cores) * tile_ms)
    memory = 2 * columns * depth / accelerator.bytes_per_ms
    return np.asarray((compute**4 + memory**4) ** 0.25, np.float64)


def _all_reduce_ms(accelerator: Accelerator, num_bytes: Array) -> Array:
    one_shot = 0.008 + 3 * num_bytes / (accelerator.link_gbps * 1e6)
    two_shot = 0.016 + 1.5 * num_bytes / (accelerator.link_gbps * 1e6)
    return np.where(num_bytes <= _ONE_SHOT_BYTES, one_shot, two_shot)
