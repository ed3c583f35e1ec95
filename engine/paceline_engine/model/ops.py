"""The decoder's elementwise ops on each device."""

import torch
from torch import Tensor
from torch.nn import functional

import paceline_kernels
from paceline_engine.model.decoder import Ops
from paceline_kernels.cpu import native_ops
from paceline_kernels.embedding.reference import scaled_rows
from paceline_kernels.norm import reference_rms_norm


class CpuOps:
    """Plain torch, in few passes over memory."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """See `Ops`."""
        if weight.dtype != x.dtype:
            return reference_rms_norm(x, weight, eps)
        return functional.rms_norm(x, weight.shape, weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """See `Ops`; the sum is written over `x`."""
        total = x.add_(residual)
        return self.rms_norm(total, weight, eps), total

    def embed_rms_norm(
        self,
        token_ids: Tensor,
        embedding: Tensor,
        weight: Tensor,
        eps: float,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """See `Ops`."""
        residual = scaled_rows(token_ids, embedding, scale)
        return self.rms_norm(residual, weight, eps), residual

    def silu_mul(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def gelu_tanh_mul(self, x: Tensor) -> Tensor:
        """See `Ops`."""
        gate, up = x.chunk(2, dim=-1)
        return functional.gelu(gate, approximate="tanh").mul_(up)


class KernelOps:
    """The fused kernels."""

    rms_norm = staticmethod(paceline_kernels.rms_norm)
    add_rms_norm = staticmethod(paceline_kernels.add_rms_norm)
    embed_rms_norm = staticmethod(paceline_kernels.embed_rms_norm)
    silu_mul = staticmethod(paceline_kernels.silu_mul)
    gelu_tanh_mul = staticmethod(paceline_kernels.gelu_tanh_mul)


def ops_for(device: torch.device, dtype: torch.dtype) -> Ops:
    """Choose by device; on a CPU the compiled ones, where they can be had."""
    if device.type != "cpu":
        return KernelOps()
    native = native_ops() if dtype == torch.float32 else None
    return CpuOps() if native is None else native
