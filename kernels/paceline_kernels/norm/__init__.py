"""RMSNorm, alone and after a residual addition; the latter also into FP8."""

from paceline_kernels.dispatch import by_device
from paceline_kernels.norm.reference import add_rms_norm as reference_add_rms_norm
from paceline_kernels.norm.reference import add_rms_norm_fp8 as reference_add_rms_norm_fp8
from paceline_kernels.norm.reference import rms_norm as reference_rms_norm

rms_norm = by_device(reference_rms_norm)
add_rms_norm = by_device(reference_add_rms_norm)
add_rms_norm_fp8 = by_device(reference_add_rms_norm_fp8)

__all__ = [
    "add_rms_norm",
    "add_rms_norm_fp8",
    "reference_add_rms_norm",
    "reference_add_rms_norm_fp8",
    "reference_rms_norm",
    "rms_norm",
]
