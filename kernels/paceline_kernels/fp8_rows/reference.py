"""Rows in FP8, in plain torch: the ground truth."""

import torch
from torch import Tensor

from paceline_kernels.fp8 import CODES, LARGEST


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:  # [rows, columns]
    """Codes [rows, columns] in E4M3 and scales [rows] in float32: `x = codes * scales`, nearly.

    A row's largest value becomes the largest code. A row that holds something that is no number
    has a scale that is none.
    """
    wide = x.float()
    largest = wide.abs().amax(dim=-1)
    inverse = LARGEST / torch.where(largest > 0, largest, 1.0)
    codes = (wide * inverse[:, None]).to(CODES)
    scales = torch.where(largest > 0, largest, 1.0) / LARGEST
    return codes, scales.masked_fill(~largest.isfinite(), torch.nan)
