"""How weights of 4 bits lie in memory for the kernel, and how they come there from checkpoints.

The inputs of a weight are cut into blocks of 128. A block of one output is 16 words, whose bits
4p to 4p + 3 hold input 32p + 2w of word w, and 16 bits above it input 32p + 2w + 1. So a thread
copies 4 words at once, `(word >> 4p) & 0x000F000F` is a pair of neighbours, and the pairs of a
place p are 32 inputs in a row. The blocks of all outputs lie beside each other: what a program
reads at a time is one piece of memory.

A group of inputs of one output shares a scale and a zero point, kept as one word: the scale in
float32, whose last 8 bits no scale of 16 bits uses, with the zero point in them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

WORDS = 16
"""Words of a block of one output."""
BLOCK_IN = 8 * WORDS
"""Inputs of a block."""
GROUP_SIZES = (32, 64, 128)
"""Inputs that may share a scale and a zero point, besides all of an output's."""
LARGEST = 15
SYMMETRIC_ZERO = 8
"""The zero point of weights that were quantised without one."""

_ZERO_BITS = 0xFF
# Which of eight neighbouring outputs each 4 bits of AWQ's words hold, from the lowest.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_IN_ORDER = tuple(range(8))


class Int4Weight(NamedTuple):
    """`(values - zeros) * scales`, group by group."""

    weight: Tensor  # [blocks, out, WORDS] int32
    groups: Tensor  # [groups, out] int32


def pack(values: Tensor, scales: Tensor, zeros: Tensor | None = None) -> Int4Weight:
    """Lay out values [out, in] of 0 to 15, and scales and zero points [groups, out].

    Without zero points the values are 8 above what they mean.
    """
    num_out, num_in = values.shape
    group_size(num_in, len(scales))
    num_blocks = -(-num_in // BLOCK_IN)
    padded = torch.nn.functional.pad(values.to(torch.int32), (0, num_blocks * BLOCK_IN - num_in))
    pieces = padded.view(num_out, num_blocks, 4, WORDS, 2)  # place, word, half
    shifts = 4 * torch.arange(4, device=values.device)[:, None] + torch.tensor(
        [0, 16], device=values.device
    )
    words = (pieces.long() << shifts[:, None, :]).sum(dim=(2, 4))
    weight = _as_int32(words).transpose(0, 1).contiguous()
    if zeros is None:
        zeros = torch.full_like(scales, SYMMETRIC_ZERO)
    return Int4Weight(weight, with_zeros(scales, zeros))


def with_zeros(scales: Tensor, zeros: Tensor) -> Tensor:
    """Put zero points into the scales' last bits."""
    bits = scales.float().contiguous().view(torch.int32) & ~_ZERO_BITS
    return bits | zeros.to(torch.int32)


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> Int4Weight:
    """Lay out AWQ's tensors: qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out].

    Eight neighbouring outputs share a word, in AWQ's own order.
    """
    values = _unpacked(qweight, _AWQ_ORDER).flatten(1).t()
    return pack(values, scales, _unpacked(qzeros, _AWQ_ORDER).flatten(1))


def from_gptq(
    qweight: Tensor,
    qzeros: Tensor | None,
    scales: Tensor,
    g_idx: Tensor | None = None,
    *,
    are_zeros_less_one: bool = True,
) -> Int4Weight:
    """Lay out GPTQ's tensors: qweight [in / 8, out], qzeros [groups, out / 8] and scales.

    Eight neighbouring inputs share a word. The first version of the format keeps zero points less
    one, where 15 means 0; the second keeps them as they are. `g_idx` names each input's group.
    Raises ValueError where the groups are not runs of inputs, as with `desc_act`.
    """
    values = _unpacked(qweight, _IN_ORDER).transpose(1, 2).flatten(0, 1).t()
    num_in = values.shape[1]
    size = group_size(num_in, len(scales))
    if g_idx is not None:
        in_order = torch.arange(num_in, device=g_idx.device) // size
        if not torch.equal(g_idx.long(), in_order):
            raise ValueError(
                f"g_idx must name groups of {size} inputs in order: "
                "checkpoints quantised with desc_act are not served"
            )
    zeros = None
    if qzeros is not None:
        zeros = (_unpacked(qzeros, _IN_ORDER).flatten(1) + are_zeros_less_one) & LARGEST
    return pack(values, scales, zeros)


def group_size(num_in: int, num_groups: int) -> int:
    """Return how many inputs share a scale. Raises ValueError where the kernel cannot serve it."""
    size, rest = divmod(num_in, num_groups)
    if rest or (num_groups > 1 and size not in GROUP_SIZES):
        raise ValueError(
            f"groups must be of {', '.join(map(str, GROUP_SIZES))} or of all inputs, "
            f"got {num_groups} groups of {num_in} inputs"
        )
    return size


def values_of(weight: Tensor, num_in: int) -> Tensor:
    """Give the values [out, in] again, 0 to 15."""
    shifts = 4 * torch.arange(4, device=weight.device)[:, None] + torch.tensor(
        [0, 16], device=weight.device
    )
    pieces = (weight.transpose(0, 1)[:, :, None, :, None] >> shifts[:, None, :]) & LARGEST
    return pieces.flatten(1)[:, :num_in]


def scales_of(groups: Tensor) -> Tensor:
    """Give the scales [groups, out] in float32."""
    return (groups & ~_ZERO_BITS).view(torch.float32)


def zeros_of(groups: Tensor) -> Tensor:
    """Give the zero points [groups, out]."""
    return groups & _ZERO_BITS


def _unpacked(words: Tensor, order: tuple[int, ...]) -> Tensor:
    """Give the eight values of each word [...], in order of what they are for: [..., 8]."""
    places = torch.tensor([4 * order.index(each) for each in range(8)], device=words.device)
    return (words[..., None] >> places) & LARGEST


def _as_int32(words: Tensor) -> Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
