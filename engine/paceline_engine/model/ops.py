"""The decoder's elementwise ops on each device."""

import torch

import paceline_kernels
from paceline_engine.model.decoder import Ops
from paceline_kernels.cpu import native_ops


class KernelOps:
    """The fused kernels on a GPU, their references on a CPU."""

    rms_norm = staticmethod(paceline_kernels.rms_norm)
    add_rms_norm = staticmethod(paceline_kernels.add_rms_norm)
    embed_rms_norm = staticmethod(paceline_kernels.embed_rms_norm)
    silu_mul = staticmethod(paceline_kernels.silu_mul)
    gelu_tanh_mul = staticmethod(paceline_kernels.gelu_tanh_mul)


def ops_for(device: torch.device, dtype: torch.dtype) -> Ops:
    """Choose by device: on a CPU the compiled ones in float32, if there is a compiler."""
    is_native = device.type == "cpu" and dtype == torch.float32
    return (native_ops() if is_native else None) or KernelOps()
