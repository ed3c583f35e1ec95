"""The decoder's ops compiled for the CPU at hand, or for its level by whoever made the image."""

import functools
import logging
import os

from paceline_kernels.cpu.block_matmul import (
    BLOCK_KINDS,
    BlockKind,
    BlockMatmul,
    Blocks,
    PackedBlocks,
)
from paceline_kernels.cpu.huge_pages import fresh_zeros, prefer_huge_pages, take_memory
from paceline_kernels.cpu.layers import (
    Layer,
    LayerProduct,
    LayersShape,
    LayersStep,
    NativeLayers,
)
from paceline_kernels.cpu.library import Gate, Matmul, PackedWeight, can_gate
from paceline_kernels.cpu.loading import Loaded, OpLibrary, load_library, places
from paceline_kernels.cpu.native import LANES, MAX_GROUP, MAX_HEADS, NativeOps, can_pair

__all__ = [
    "BLOCK_KINDS",
    "LANES",
    "MAX_GROUP",
    "MAX_HEADS",
    "BlockKind",
    "BlockMatmul",
    "Blocks",
    "Gate",
    "Layer",
    "LayerProduct",
    "LayersShape",
    "LayersStep",
    "Matmul",
    "NativeLayers",
    "NativeOps",
    "OpLibrary",
    "PackedBlocks",
    "PackedWeight",
    "can_gate",
    "can_pair",
    "fresh_zeros",
    "native_ops",
    "op_library",
    "prefer_huge_pages",
    "take_memory",
]

_log = logging.getLogger(__name__)


@functools.cache
def native_ops() -> NativeOps | None:
    """Return the compiled ops, loaded once; None, and a line in the log, where torch's are used."""
    library = _loaded().library
    return None if library is None else NativeOps(library)


def op_library() -> OpLibrary:
    """Tell which ops the CPU runs on; loads them where nobody has asked for them yet."""
    return _loaded().description


@functools.cache
def _loaded() -> Loaded:
    loaded = load_library(places(os.environ))
    level = logging.WARNING if loaded.library is None else logging.INFO
    _log.log(level, "%s", loaded.description)
    return loaded
