"""What a token is drawn by: its request's seed and parameters, and its position.

A draw follows from seed and position alone, with no state in between, so it does not depend on the
batch, on a preemption, or on how a prompt was cut into chunks.
"""

import struct
from hashlib import blake2b
from typing import NamedTuple

import torch
from torch import Tensor

from paceline_engine.core.request import Request

_MOST_TOP_K = (1 << 31) - 1
_LARGEST = torch.finfo(torch.float32).max
_MASK = (1 << 64) - 1


class SamplingTensors(NamedTuple):
    """Sampling parameters in the order in which `paceline_kernels.sample_tokens` takes them."""

    seeds: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64: place in its sequence of the token that is drawn
    temperatures: Tensor  # [rows] float32
    top_k: Tensor  # [rows] int32
    top_p: Tensor  # [rows] float32
    min_p: Tensor  # [rows] float32

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "SamplingTensors":
        """Take memory for so many rows; it is not written yet."""

        def each(dtype: torch.dtype) -> Tensor:
            return torch.empty(num_rows, dtype=dtype, device=device)

        floats = [each(torch.float32) for _ in range(3)]
        longs = [each(torch.int64) for _ in range(2)]
        return cls(longs[0], longs[1], floats[0], each(torch.int32), floats[1], floats[2])

    def first(self, num_rows: int) -> "SamplingTensors":
        """Return views of the first rows."""
        return SamplingTensors(*(each[:num_rows] for each in self))

    def at(self, rows: Tensor) -> "SamplingTensors":
        """Return copies of some rows."""
        return SamplingTensors(*(each[rows] for each in self))


def row_numbers(request: Request, salt: bytes) -> tuple[int, ...]:
    """Return a request's part of them, as `paceline_kernels.input_prep.DRAW_COLUMNS` numbers.

    That is everything but the position.
    """
    sampling = request.sampling
    seed = (seed_of(request, salt) + (1 << 63)) % (1 << 64) - (1 << 63)
    return struct.unpack(
        "<6i",
        struct.pack(
            "<qfiff",
            seed,
            min(sampling.temperature, _LARGEST),
            min(max(sampling.top_k, 0), _MOST_TOP_K),
            sampling.top_p,
            sampling.min_p,
        ),
    )


def seed_of(request: Request, salt: bytes) -> int:
    """Return the request's own seed, or one that only this engine run gives to its id."""
    if request.sampling.seed is not None:
        return request.sampling.seed
    digest = blake2b(request.id.encode(), key=salt, digest_size=8).digest()
    return int.from_bytes(digest, "little")


def uniform(seed: int, position: int) -> float:
    """Return a number in (0, 1), the same for the same seed and position."""
    mixed = _mix(_mix(seed & _MASK) + position)
    return ((mixed >> 12) + 0.5) * 2.0**-52


def _mix(value: int) -> int:
    """Mix by SplitMix64: each bit of the result depends on each bit of the value."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
