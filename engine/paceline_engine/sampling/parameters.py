"""What the sampler on a GPU is told of each row: one copy a step, through pinned memory."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from paceline_engine.request import Request
from paceline_engine.running.to_device import to_device
from paceline_engine.sampling.draw import seed_of

_MOST_TOP_K = (1 << 31) - 1
_COLUMNS = ("i8", "i8", "f4", "i4", "f4", "f4")
_ROW_BYTES = sum(int(column[1]) for column in _COLUMNS)


class Parameters(NamedTuple):
    """In the order in which `paceline_kernels.sample_tokens` takes them."""

    seeds: Tensor  # [rows] int64
    positions: Tensor  # [rows] int64
    temperatures: Tensor  # [rows] float32
    top_k: Tensor  # [rows] int32
    top_p: Tensor  # [rows] float32
    min_p: Tensor  # [rows] float32

    def of(self, rows: Tensor) -> "Parameters":
        """Those of some rows."""
        return Parameters(*(each[rows] for each in self))


def parameters_of(
    requests: Sequence[Request], ahead: Sequence[int], salt: bytes, device: torch.device
) -> Parameters:
    """Begin to copy them; `ahead` are tokens between each request's last known one and the row."""
    num_rows = len(requests)
    packed = np.empty(num_rows * _ROW_BYTES, dtype=np.uint8)
    columns = zip(*map(_row, requests, ahead, [salt] * num_rows), strict=True)
    sizes = [num_rows * int(column[1]) for column in _COLUMNS]
    ends = np.cumsum(sizes).tolist()
    for values, kind, size, end in zip(columns, _COLUMNS, sizes, ends, strict=True):
        packed[end - size : end].view(kind)[:] = values
    copied = to_device(packed, device)
    dtypes = (torch.int64, torch.int64, torch.float32, torch.int32, torch.float32, torch.float32)
    return Parameters(
        *(
            copied[end - size : end].view(dtype)
            for dtype, size, end in zip(dtypes, sizes, ends, strict=True)
        )
    )


def _row(request: Request, ahead: int, salt: bytes) -> tuple[int, int, float, int, float, float]:
    sampling = request.sampling
    seed = (seed_of(request, salt) + (1 << 63)) % (1 << 64) - (1 << 63)
    return (
        seed,
        len(request.token_ids) + ahead,
        sampling.temperature,
        min(max(sampling.top_k, 0), _MOST_TOP_K),
        sampling.top_p,
        sampling.min_p,
    )
