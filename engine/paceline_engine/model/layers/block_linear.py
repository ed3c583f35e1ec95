"""Products and embeddings whose weights stay in a GGUF file's quantised blocks, on a CPU.

What is multiplied becomes signed bytes, with a scale for each 32 inputs of each token
(paceline_kernels/cpu/blocks.c). Weights that are multiplied as one may be of different kinds.
"""

from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from paceline_engine.core.model_config import Activation
from paceline_engine.errors import UnsupportedDevice
from paceline_engine.model.layers.linear import Linear, linear
from paceline_kernels.cpu import (
    BlockMatmul,
    Blocks,
    Gate,
    PackedBlocks,
    can_gate,
    native_ops,
)

_TRIAL_INPUTS, _TRIAL_BYTES = 32, 34  # of a block of Q8_0


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """Weights of the same inputs, stacked by their outputs: blocks, or plain numbers [out, in]."""

    parts: tuple[Blocks | Tensor, ...]


class BlockLinear:
    """See `Linear`."""

    def __init__(
        self, matmul: BlockMatmul, parts: list[Blocks], bias: Tensor | None = None
    ) -> None:
        self.weight = matmul.pack(parts)
        self.bias = None if bias is None else bias.float()  # [out]
        self._matmul = matmul

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self._matmul(x, self.weight, self.bias)


class BlockGatedLinear:
    """Gate and up in one product: the compiled product applies the activation itself."""

    def __init__(self, matmul: BlockMatmul, weight: Blocks, activation: Activation) -> None:
        self.weight = matmul.pack([weight], is_gated=True)
        self._matmul = matmul
        self.gate: Gate = activation

    def __call__(self, x: Tensor) -> Tensor:  # [rows, in] -> [rows, out]
        """See `Linear`."""
        return self._matmul.gated(x, self.weight, self.gate)


class JoinedLinear:
    """Products of the same input side by side: some of blocks, some of plain numbers."""

    def __init__(self, products: list[Linear]) -> None:
        self.products = products

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return torch.cat([product(x) for product in self.products], dim=1)


class StoredEmbedding:
    """An embedding [vocab, hidden] in blocks: a token's row is dequantised when it is looked up."""

    def __init__(self, weight: Blocks, dtype: torch.dtype) -> None:
        self._matmul = block_matmul()
        self.weight: PackedBlocks = self._matmul.pack([weight])
        self.dtype = dtype
        self.device = torch.device("cpu")

    def __getitem__(self, token_ids: Tensor) -> Tensor:  # [tokens] -> [tokens, hidden]
        """Look up the tokens' rows."""
        return self._matmul.rows(self.weight, token_ids, self.dtype)

    def __call__(self, x: Tensor) -> Tensor:  # [rows, hidden] -> [rows, vocab]
        """Multiply, as the head of a model that has none of its own. See `Linear`."""
        return self._matmul(x, self.weight)


def block_matmul() -> BlockMatmul:
    """Return the compiled product. Raises UnsupportedDevice where there is no C compiler."""
    native = native_ops()
    if native is None:
        raise UnsupportedDevice(
            "Weights in a file's own blocks (quantization as_stored) are multiplied by compiled "
            "products, which need a C compiler."
        )
    return native.block_matmul


def block_linear(weight: StoredWeight, bias: Tensor | None = None) -> Linear:
    """Lay out a weight of which some is in blocks."""
    matmul = block_matmul()
    products: list[Linear] = []
    first = 0
    for is_blocks, group in groupby(weight.parts, lambda part: isinstance(part, Blocks)):
        parts = list(group)
        blocks = [part for part in parts if isinstance(part, Blocks)]
        plain = [part for part in parts if isinstance(part, Tensor)]
        outputs = sum(len(part) for part in plain) + sum(part.outputs for part in blocks)
        own_bias = None if bias is None else bias[first : first + outputs].contiguous()
        first += outputs
        products.append(
            BlockLinear(matmul, _joined(blocks), own_bias)
            if is_blocks
            else linear(torch.cat(plain), own_bias)
        )
    return products[0] if len(products) == 1 else JoinedLinear(products)


def blocks_of_zeros(outputs: int, inputs: int) -> Blocks:
    """Make a weight that takes as long to multiply as any other: for a trial."""
    row_bytes = inputs // _TRIAL_INPUTS * _TRIAL_BYTES
    return Blocks("Q8_0", torch.zeros(outputs, row_bytes, dtype=torch.uint8))


def fused_gated_blocks(weight: StoredWeight, activation: Activation) -> BlockGatedLinear | None:
    """Lay out gate and value for one step; None where their kinds differ."""
    blocks = _joined([part for part in weight.parts if isinstance(part, Blocks)])
    is_one = len(blocks) == 1 and all(isinstance(part, Blocks) for part in weight.parts)
    if not is_one or not can_gate(blocks[0].outputs):
        return None
    return BlockGatedLinear(block_matmul(), blocks[0], activation)


def _joined(parts: list[Blocks]) -> list[Blocks]:
    """Merge adjacent weights of one type, so that no panel between them is half empty."""
    groups = (list(group) for _, group in groupby(parts, lambda part: part.kind))
    return [Blocks(group[0].kind, torch.cat([part.rows for part in group])) for group in groups]
