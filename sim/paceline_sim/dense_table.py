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
class Device:
    """One accelerator, datasheet and what is reached of it."""

    num_cores: int
    tflops: float
    """Dense bf16, datasheet."""
    gbps: float
    """Memory bandwidth, datasheet."""
    compute_efficiency: float
    memory_efficiency: float
    link_gbps: float = 0.0
    """What an all-reduce moves per second."""


@dataclass(frozen=True, slots=True)
class Network:
    """A decoder's shapes as one of `ranks` devices sees them."""

    layers: int
    hidden: int
    products: tuple[tuple[int, int], ...]
    """Columns and depth of each weight matrix of a layer."""
    vocabulary: int
    ranks: int = 1


def dense_table(device: Device, network: Network, *, host_ms: float, max_tokens: int) -> Array:
    """Milliseconds by tokens [max_tokens + 1]; index 0 is what an empty step would take."""
    tokens = np.arange(max_tokens + 1, dtype=np.float64)
    layer = np.zeros_like(tokens)
    for columns, depth in network.products:
        layer += _product_ms(device, tokens, columns, depth)
    element_bytes = tokens * _ELEMENT_PASSES * network.hidden * 2
    layer += element_bytes / (device.gbps * _ELEMENT_EFFICIENCY * 1e6)
    if network.ranks > 1:
        layer += 2 * _all_reduce_ms(device, tokens * network.hidden * 2)
    head_bytes = 2 * network.vocabulary * network.hidden / network.ranks
    head_ms = head_bytes / (device.gbps * device.memory_efficiency * 1e6)
    throttled = 1 + _THROTTLE * (1 - np.exp(-tokens / _THROTTLE_TOKENS))
    return np.asarray(host_ms + head_ms + network.layers * layer * throttled, np.float64)


def _product_ms(device: Device, tokens: Array, columns: int, depth: int) -> Array:
    core_flops = device.tflops * device.compute_efficiency * 1e9 / device.num_cores  # per ms
    compute = np.full_like(tokens, np.inf)
    for tile_rows, tile_columns, speed in _TILES:
        tiles = np.ceil(np.maximum(tokens, 1) / tile_rows) * np.ceil(columns / tile_columns)
        tile_ms = 2 * tile_rows * tile_columns * depth / (core_flops * speed)
        compute = np.minimum(compute, np.ceil(tiles / device.num_cores) * tile_ms)
    memory = 2 * columns * depth / (device.gbps * device.memory_efficiency * 1e6)
    return np.asarray((compute**4 + memory**4) ** 0.25, np.float64)


def _all_reduce_ms(device: Device, num_bytes: Array) -> Array:
    one_shot = 0.008 + 3 * num_bytes / (device.link_gbps * 1e6)
    two_shot = 0.016 + 1.5 * num_bytes / (device.link_gbps * 1e6)
    return np.where(num_bytes <= _ONE_SHOT_BYTES, one_shot, two_shot)
