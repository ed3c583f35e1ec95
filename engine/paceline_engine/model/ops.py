"""The decoder's elementwise ops on each device."""

from typing import Protocol

import torch
from torch import Tensor

import paceline_kernels
from paceline_kernels.cpu import native_ops


class Ops(Protocol):
    """The elementwise ops, as the device runs them best."""

    def rms_norm(self, x: Tensor, /, weight: Tensor, eps: float) -> Tensor:
        """`x / sqrt(mean(x^2) + eps) * weight` over the last dimension.

        Rounded to the weight's type before the product, and to x's type after it.
        """
        ...

    def add_rms_norm(
        self, x: Tensor, /, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(x + residual), x + residual)`."""
        ...

    def embed_rms_norm(
        self,
        token_ids: Tensor,  # [tokens]
        /,
        embedding: Tensor,  # [vocab, hidden]
        weight: Tensor,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """`(rms_norm(rows), rows)` of the tokens' rows of the embedding, times the scale."""
        ...

    def silu_mul(self, x: Tensor, /) -> Tensor:
        """`silu(first half) * second half` of the last dimension."""
        ...

    def gelu_tanh_mul(self, x: Tensor, /) -> Tensor:
        """`gelu(first half) * second half`, with the tanh approximation."""
        ...


class KernelOps:
    """The fused kernels on a GPU, their references on a CPU."""

    rms_norm = staticmethod(paceline_kernels.rms_norm)
    add_rms_norm = staticmethod(paceline_kernels.add_rms_norm)
    embed_rms_norm = staticmethod(paceline_kernels.embed_rms_norm)
    silu_mul = staticmethod(paceline_kernels.silu_mul)
    gelu_tanh_mul = staticmethod(paceline_kernels.gelu_tanh_mul)


def ops_for(device: torch.device, dtype: torch.dtype) -> Ops:
    """Choose by device: on a CPU the compiled ones, but for float16 or without a compiler."""
    is_native = device.type == "cpu" and dtype in (torch.float32, torch.bfloat16)
    return (native_ops() if is_native else None) or KernelOps()
