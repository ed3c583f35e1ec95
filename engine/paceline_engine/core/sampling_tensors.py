"""What a token is drawn by beside a GPU, and how a request's part of it is kept at its row."""

import struct
from typing import NamedTuple

import torch
from torch import Tensor

from paceline_engine.core.draw import seed_of
from paceline_engine.core.request import Request

_MOST_TOP_K = (1 << 31) - 1
_LARGEST = torch.finfo(torch.float32).max


class Parameters(NamedTuple):
    """In the order in which `paceline_kernels.sample_tokens` takes them."""

    seeds: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64: place in its sequence of the token that is drawn
    temperatures: Tensor  # [rows] float32
    top_k: Tensor  # [rows] int32
    top_p: Tensor  # [rows] float32
    min_p: Tensor  # [rows] float32

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> "Parameters":
        """Memory for those of so many rows, not written yet."""

        def each(dtype: torch.dtype) -> Tensor:
            return torch.empty(num_rows, dtype=dtype, device=device)

        floats = [each(torch.float32) for _ in range(3)]
        longs = [each(torch.int64) for _ in range(2)]
        return cls(longs[0], longs[1], floats[0], each(torch.int32), floats[1], floats[2])

    def first(self, num_rows: int) -> "Parameters":
        """Those of the first rows, where they lie."""
        return Parameters(*(each[:num_rows] for each in self))

    def of(self, rows: Tensor) -> "Parameters":
        """Those of some rows."""
        return Parameters(*(each[rows] for each in self))


def row_numbers(request: Request, salt: bytes) -> tuple[int, ...]:
    """All of it but the position, as `paceline_kernels.input_prep.DRAW_COLUMNS` numbers."""
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
