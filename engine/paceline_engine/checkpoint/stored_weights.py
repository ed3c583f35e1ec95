"""The memory that a GGUF file's weights take when they keep the file's quantised types.

Free of torch: `paceline plan` asks, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Final

KEPT: Final[dict[str, tuple[int, int]]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 148),
    "Q5_K": (256, 180),
    "Q6_K": (256, 210),
}
"""Types that are multiplied without dequantising: inputs of a block, and its bytes in memory.

They are the file's, but for the scales of Q4_K and Q5_K: six bits there, a byte here.
"""
ROPE_DIVISORS: Final = "rope_freqs.weight"
"""Name of a tensor in the file that is not a weight."""
PLAIN: Final = ("F32", "F16", "BF16")
_PANEL: Final = 32
"""Outputs of a panel; the last panel is padded."""


class UnsupportedKind(ValueError):  # noqa: N818 - the name is the sentence
    """A tensor's kind cannot be multiplied as it is."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What the file says of a tensor; its name is the file's own."""

    name: str
    kind: str
    shape: tuple[int, ...]
    """Inputs last."""


def require_kept(tensor: StoredTensor) -> None:
    """Raise UnsupportedKind where the tensor's kind cannot be multiplied as it is."""
    if tensor.kind not in (*KEPT, *PLAIN):
        raise UnsupportedKind(
            f"tensor {tensor.name} is of type {tensor.kind}, which is not multiplied as it is "
            f"stored; these are: {', '.join((*KEPT, *PLAIN))}"
        )


def kept_bytes(tensors: Iterable[StoredTensor], bytes_per_value: int, *, ranks: int = 1) -> int:
    """Return what a rank's part of the weights takes; plain numbers take `bytes_per_value`.

    Raises UnsupportedKind.
    """
    whole = layers = 0
    for tensor in tensors:
        require_kept(tensor)
        num_bytes = _bytes_of(tensor, bytes_per_value)
        if tensor.name.startswith("blk.") and len(tensor.shape) > 1:
            layers += num_bytes
        else:
            whole += num_bytes
    return whole + layers // ranks


def _bytes_of(tensor: StoredTensor, bytes_per_value: int) -> int:
    if tensor.kind in PLAIN:
        return prod(tensor.shape) * bytes_per_value
    outputs, inputs = tensor.shape
    block, num_bytes = KEPT[tensor.kind]
    return -(-outputs // _PANEL) * _PANEL * inputs // block * num_bytes
