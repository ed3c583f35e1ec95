"""Products of oneDNN with packed weights, on a CPU."""

import torch
from torch import Tensor

# Rows that oneDNN picks the block layout for. One chosen for a single row is up to 1.6 times
# slower with more; from 16 on, the choice fits every number of rows.
_PACKED_FOR_ROWS = 64


class PackedLinear:
    """The weight in oneDNN's blocks; only its own product can read it."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR_ROWS)  # noqa: SLF001 - torch's only door to oneDNN's packing, the one that its own compiler uses
        self.bias = bias  # [out]
        self._product = torch.ops.mkldnn._linear_pointwise.default  # noqa: SLF001 - as above

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply [rows, in] to [rows, out]."""
        y: Tensor = self._product(x, self.weight, self.bias, "none", [], "")
        return y


def has_onednn(dtype: torch.dtype) -> bool:
    """Tell whether oneDNN multiplies numbers of this type on this CPU."""
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())  # noqa: SLF001 - torch's only way to ask
    return dtype == torch.float32 and torch.backends.mkldnn.is_available()
