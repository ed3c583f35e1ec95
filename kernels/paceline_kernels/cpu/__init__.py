"""The decoder's ops compiled for the CPU at hand, where it has a C compiler."""

import functools
import logging

from paceline_kernels.cpu.compile import CompileError, compile_native
from paceline_kernels.cpu.huge_pages import prefer_huge_pages
from paceline_kernels.cpu.layers import (
    Layer,
    LayerProduct,
    LayersShape,
    LayersStep,
    NativeLayers,
)
from paceline_kernels.cpu.library import Gate, Matmul, PackedWeight, can_gate
from paceline_kernels.cpu.native import LANES, MAX_GROUP, MAX_HEADS, NativeOps, can_pair

__all__ = [
    "LANES",
    "MAX_GROUP",
    "MAX_HEADS",
    "CompileError",
    "Gate",
    "Layer",
    "LayerProduct",
    "LayersShape",
    "LayersStep",
    "Matmul",
    "NativeLayers",
    "NativeOps",
    "PackedWeight",
    "can_gate",
    "can_pair",
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
