"""The decoder's ops compiled for the CPU at hand, where it has a C compiler."""

import functools
import logging

from paceline_kernels.cpu.block_matmul import (
    BLOCK_KINDS,
    BlockKind,
    BlockMatmul,
    Blocks,
    PackedBlocks,
)
from paceline_kernels.cpu.compile import CompileError, compile_native
from paceline_kernels.cpu.huge_pages import prefer_huge_pages
from paceline_kernels.cpu.library import Gate, Matmul, PackedWeight, can_gate
from paceline_kernels.cpu.native import LANES, MAX_GROUP, MAX_HEADS, NativeOps

__all__ = [
    "BLOCK_KINDS",
    "LANES",
    "MAX_GROUP",
    "MAX_HEADS",
    "BlockKind",
    "BlockMatmul",
    "Blocks",
    "CompileError",
    "Gate",
    "Matmul",
    "NativeOps",
    "PackedBlocks",
    "PackedWeight",
    "can_gate",
    "compile_native",
    "native_ops",
    "prefer_huge_pages",
]

_log = logging.getLogger(__name__)


@functools.cache
def native_ops() -> NativeOps | None:
    """Compile them once; None, and a line in the log, where that cannot be done."""
    try:
        return NativeOps(compile_native())
    except CompileError as error:
        _log.warning("the CPU's compiled ops are not to be had, torch's are used: %s", error)
        return None
