"""The GPUs that the step-time model knows.

Bandwidth, dense bfloat16 rate and multiprocessors are those of NVIDIA's data sheets (A100 80GB SXM,
H100 SXM, H200 SXM, HGX B200). `matmul_rate` is the most that torch reached in any shape:
github.com/stas00/ml-engineering, compute/accelerator, "Maximum Achievable Matmul FLOPS", read
2026-11; its row of the H100 says that the H200 is the same. L2 is that of NVIDIA's papers on the
A100 and the H100, whose chip the H200 has; a B200's 126 MB are what others report
(freecodecamp.org, on the memory of Blackwell).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU."""

    name: str
    bandwidth: float
    """Bytes a second, of the data sheet."""
    tensor_rate: float
    """FLOPs a second in bfloat16, dense, of the data sheet."""
    matmul_rate: float
    """FLOPs a second that a product of the best shape was measured at."""
    multiprocessors: int
    capability: tuple[int, int]
    l2_bytes: int


GPUS: Mapping[str, Gpu] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            Gpu("A100", 2.039e12, 312e12, 271.2e12, 108, (8, 0), 40_000_000),
            Gpu("H100", 3.35e12, 989e12, 794.5e12, 132, (9, 0), 50_000_000),
            Gpu("H200", 4.8e12, 989e12, 794.5e12, 132, (9, 0), 50_000_000),
            Gpu("B200", 8.0e12, 2250e12, 1745e12, 148, (10, 0), 126_000_000),
        )
    }
)


def gpu_named(device: str) -> Gpu | None:
    """Find the GPU that torch calls so; None where the model knows none."""
    return next((gpu for name, gpu in GPUS.items() if name in device), None)
