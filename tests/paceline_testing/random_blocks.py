"""Random blocks of GGUF's kinds: any bits are codes, but scales have to be finite.

The gguf package reads every kind and writes only some, so weights are made as blocks.
"""

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from paceline_kernels.cpu import BlockKind, Blocks

_HALVES: dict[BlockKind, tuple[int, ...]] = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where a block has a scale, or a least value, as a half."""


def random_blocks(kind: BlockKind, outputs: int, inputs: int, seed: int = 0) -> Blocks:
    """Draw a weight [outputs, inputs] whose scales differ, in sign too."""
    random = np.random.default_rng(seed)
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rows = random.integers(0, 256, (outputs, inputs // block, size), dtype=np.uint8)
    for at in _HALVES[kind]:
        scales = random.normal(0.0, 0.01, rows.shape[:2]).astype("<f2")
        rows[:, :, at : at + 2] = scales[:, :, None].view(np.uint8)
    return Blocks(kind, torch.from_numpy(rows.reshape(outputs, -1)))


def values_of(blocks: Blocks) -> Tensor:  # [outputs, inputs] float64
    """Dequantise with the gguf package."""
    kind = GGMLQuantizationType[blocks.kind]
    return torch.from_numpy(dequantize(blocks.rows.numpy(), kind)).double()
