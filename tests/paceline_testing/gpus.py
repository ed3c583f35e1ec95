"""What the multiprocessors of a generation of GPUs hold, and how many programs fit one.

Sizes are those of the CUDA C++ Programming Guide's table of compute capabilities; how registers
and shared memory are handed out is NVIDIA's occupancy calculator's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType

WARP = 32
_REGISTERS_PER_UNIT = 256
"""A warp gets its registers in such units."""
_QUARTERS = 4
"""A multiprocessor's registers and warp slots lie in four parts; a warp lives in one."""
_SHARED_UNIT_BYTES = 128
_RESERVED_SHARED_BYTES = 1024
"""Reserved in each program for the driver."""


@dataclass(frozen=True, slots=True)
class GpuGeneration:
    """One generation: what a program may take, and what its multiprocessor has."""

    name: str
    capability: int
    """Major and minor as one number."""
    shared_bytes: int
    """Shared memory of one multiprocessor."""
    prefill_instruction: str
    """Which of its matrix instructions is the fast one for wide tiles."""
    multiprocessors: int
    """Of a whole device: A100, A40, L40S, H100, B200, RTX PRO 6000 Blackwell."""
    registers: int = 65536
    max_warps: int = 64
    max_programs: int = 32
    tensor_columns: int = 0
    """Columns of tensor memory, where there is any."""

    @property
    def max_shared_bytes(self) -> int:
        """What one program may take."""
        return self.shared_bytes - _RESERVED_SHARED_BYTES


GPUS: Mapping[str, GpuGeneration] = MappingProxyType(
    {
        gpu.name: gpu
        for gpu in (
            GpuGeneration("sm_80", 80, 164 * 1024, "mma", 108),
            GpuGeneration("sm_86", 86, 100 * 1024, "mma", 84, max_warps=48, max_programs=16),
            GpuGeneration("sm_89", 89, 100 * 1024, "mma", 142, max_warps=48, max_programs=24),
            GpuGeneration("sm_90", 90, 228 * 1024, "wgmma", 132),
            GpuGeneration("sm_100", 100, 228 * 1024, "tcgen05", 148, tensor_columns=512),
            GpuGeneration("sm_120", 120, 100 * 1024, "mma", 188, max_warps=48, max_programs=24),
        )
    }
)


def programs_per_multiprocessor(
    gpu: GpuGeneration,
    *,
    num_warps: int,
    registers: int,
    shared_bytes: int,
    tensor_columns: int = 0,
) -> int:
    """How many programs run at a time on one; 0 where not even one fits.

    `registers` are those of a thread, `shared_bytes` and `tensor_columns` those of a program.
    """
    if shared_bytes > gpu.max_shared_bytes or tensor_columns > gpu.tensor_columns:
        return 0
    per_warp = _up_to(registers * WARP, _REGISTERS_PER_UNIT)
    warps = _QUARTERS * (gpu.registers // _QUARTERS // per_warp)
    shared = _up_to(shared_bytes + _RESERVED_SHARED_BYTES, _SHARED_UNIT_BYTES)
    limits = [gpu.max_programs, min(warps, gpu.max_warps) // num_warps, gpu.shared_bytes // shared]
    if tensor_columns:
        limits.append(gpu.tensor_columns // tensor_columns)
    return min(limits)


def occupancy(gpu: GpuGeneration, *, num_warps: int, programs: int) -> float:
    """Share of the multiprocessor's warp slots that these programs fill."""
    return programs * num_warps / gpu.max_warps


def _up_to(amount: int, unit: int) -> int:
    return ceil(amount / unit) * unit
