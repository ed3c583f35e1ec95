"""Products with weights in GGUF's quantised blocks, kept in their bits.

Codes are never widened in memory: a chunk of 256 inputs of some outputs is unpacked at a time, in
the cache. What is multiplied becomes signed bytes, with a scale for each 32 inputs of each row.
"""

from collections.abc import Sequence
from ctypes import CDLL, c_int, c_int64, c_void_p
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal, get_args

import torch
from torch import Tensor

from paceline_kernels.cpu.huge_pages import prefer_huge_pages
from paceline_kernels.cpu.library import GATES, Gate, address, can_gate, function, require

BlockKind = Literal["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
"""In the order of `enum block_kind`."""
BLOCK_KINDS: Final[tuple[BlockKind, ...]] = get_args(BlockKind)

_FORMS: Final[dict[BlockKind, tuple[int, int]]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Inputs and bytes of a block."""
_ROWS: Final = (torch.float32, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Blocks:
    """A weight [outputs, inputs] as a GGUF file has it. Raises ValueError where it is not whole."""

    kind: BlockKind
    rows: Tensor  # [outputs, bytes of a row] uint8

    def __post_init__(self) -> None:
        """Refuse what C would misread."""
        _, size = _FORMS[self.kind]
        shape, dtype = self.rows.shape, self.rows.dtype
        if len(shape) != 2 or shape[1] % size or not shape[1] or dtype != torch.uint8:  # noqa: PLR2004 - rows and bytes
            raise ValueError(
                f"rows of {self.kind} must be uint8 in whole blocks of {size} bytes, "
                f"got {tuple(shape)} {dtype}"
            )

    @property
    def outputs(self) -> int:
        """How many rows there are."""
        return len(self.rows)

    @property
    def inputs(self) -> int:
        """How many values a row has."""
        inputs, size = _FORMS[self.kind]
        return self.rows.shape[1] // size * inputs

    @property
    def block_inputs(self) -> int:
        """How many values a block has: a row can be cut between blocks only."""
        return _FORMS[self.kind][0]

    def cut_inputs(self, first: int, count: int) -> "Blocks":
        """Return the inputs [first, first + count): whole blocks."""
        inputs, size = _FORMS[self.kind]
        if first % inputs or count % inputs:
            raise ValueError(
                f"{self.kind} is cut between blocks of {inputs} values, "
                f"got {first} and {first + count}"
            )
        part = self.rows.narrow(1, first // inputs * size, count // inputs * size)
        return Blocks(self.kind, part.contiguous())


@dataclass(frozen=True, slots=True)
class PackedBlocks:
    """Weights of one or several kinds in panels, their outputs one after the other."""

    packed: Tensor  # [bytes] uint8
    panels: Tensor  # [panels, 4] int64: offset, kind, first output, outputs
    outputs: int
    inputs: int
    is_gated: bool

    @property
    def nbytes(self) -> int:
        """Count the bytes that a product reads."""
        return self.packed.nbytes + self.panels.nbytes

    def takes(self, dtype: torch.dtype) -> bool:
        """Tell whether rows of this type can be multiplied."""
        return dtype in _ROWS


class BlockMatmul:
    """Every tensor is contiguous and on the CPU; rows are float32 or bfloat16."""

    def __init__(self, library: CDLL) -> None:
        self._pack = function(library, "pack_blocks", [c_void_p] * 2 + [c_int64] * 3 + [c_int])
        self._matmul = function(
            library, "block_matmul", [c_void_p] * 5 + [c_int64] * 4 + [c_int] * 2, c_int
        )
        self._rows = function(library, "block_rows", [c_void_p] * 4 + [c_int64] * 2 + [c_int])
        self._values = function(library, "block_values", [c_void_p] * 2 + [c_int64] * 3)
        self._panel_bytes = library.block_panel_bytes
        self._panel_bytes.argtypes = [c_int64, c_int64]
        self._panel_bytes.restype = c_int64
        library.block_panel_width.restype = c_int64
        self._panel_width: int = library.block_panel_width()

    def pack(self, parts: Sequence[Blocks], *, is_gated: bool = False) -> PackedBlocks:
        """Copy weights of the same inputs, one or several, to be multiplied as one.

        If gated, it is one weight, and its first half are the gates of the second. Raises
        ValueError where gated outputs are not a multiple of 32.
        """
        inputs = parts[0].inputs
        if any(part.inputs != inputs for part in parts):
            raise ValueError(f"parts must have {inputs} inputs, got {[p.inputs for p in parts]}")
        outputs = sum(part.outputs for part in parts)
        if is_gated and (len(parts) != 1 or not can_gate(outputs)):
            raise ValueError(
                "a gated weight must be one of a multiple of 32 outputs, "
                f"got {[part.outputs for part in parts]}"
            )
        panels: list[tuple[int, int, int, int]] = []
        offset = first = 0
        for part in parts:
            kind = BLOCK_KINDS.index(part.kind)
            size: int = self._panel_bytes(kind, inputs)
            for column in range(0, part.outputs, self._panel_width):
                width = min(self._panel_width, part.outputs - column)
                panels.append((offset, kind, first + column, width))
                offset += size
            first += part.outputs
        packed = torch.empty(offset, dtype=torch.uint8)
        prefer_huge_pages(packed)
        starts = {output: start for start, _, output, _ in panels}
        for part, end in zip(parts, accumulate(part.outputs for part in parts), strict=True):
            require("rows", part.rows, tuple(part.rows.shape), torch.uint8)
            self._pack(
                part.rows.data_ptr(),
                packed.data_ptr() + starts[end - part.outputs],
                part.outputs,
                inputs,
                BLOCK_KINDS.index(part.kind),
                is_gated,
                torch.get_num_threads(),
            )
        table = torch.tensor(panels, dtype=torch.int64)
        return PackedBlocks(packed, table, outputs, inputs, is_gated)

    def __call__(self, x: Tensor, weight: PackedBlocks, bias: Tensor | None = None) -> Tensor:
        """`x @ weight.T + bias`, [rows, inputs] to [rows, outputs]; the bias is float32."""
        if weight.is_gated:
            raise ValueError("a gated weight is for `gated`")
        if bias is not None:
            require("bias", bias, (weight.outputs,))
        return self._run(x, weight, bias, weight.outputs, 0)

    def gated(self, x: Tensor, weight: PackedBlocks, gate: Gate) -> Tensor:
        """`gate(x @ first half.T) * (x @ second half.T)`, [rows, inputs] to [rows, outputs / 2]."""
        if not weight.is_gated:
            raise ValueError("the weight must be packed as gated")
        return self._run(x, weight, None, weight.outputs // 2, GATES[gate])

    def rows(self, weight: PackedBlocks, ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantise the rows `ids` [count] of one weight: [count, inputs], to the nearest."""
        require("ids", ids, (len(ids),), torch.int64)
        if len(weight.panels) * self._panel_width - weight.outputs >= self._panel_width:
            raise ValueError("rows are looked up in one weight, not in several")
        if weight.is_gated:
            raise ValueError("a gated weight is for `gated`")
        if len(ids) and not (int(ids.min()) >= 0 and int(ids.max()) < weight.outputs):
            raise ValueError(f"ids must be below {weight.outputs}")
        out = torch.empty(len(ids), weight.inputs, dtype=dtype)
        self._rows(
            ids.data_ptr(),
            weight.packed.data_ptr(),
            weight.panels.data_ptr(),
            out.data_ptr(),
            len(ids),
            weight.inputs,
            _is_bfloat16(dtype),
            torch.get_num_threads(),
        )
        return out

    def values(self, weight: Blocks) -> Tensor:
        """Dequantise a weight: float32 [outputs, inputs], as the gguf package has it."""
        require("rows", weight.rows, tuple(weight.rows.shape), torch.uint8)
        out = torch.empty(weight.outputs, weight.inputs, dtype=torch.float32)
        self._values(
            weight.rows.data_ptr(),
            out.data_ptr(),
            weight.outputs,
            weight.inputs,
            BLOCK_KINDS.index(weight.kind),
            torch.get_num_threads(),
        )
        return out

    def _run(
        self, x: Tensor, weight: PackedBlocks, bias: Tensor | None, width: int, how: int
    ) -> Tensor:
        rows = len(x)
        is_bfloat16 = _is_bfloat16(x.dtype)
        require("x", x, (rows, weight.inputs), x.dtype)
        out = x.new_empty(rows, width)
        failed = self._matmul(
            x.data_ptr(),
            weight.packed.data_ptr(),
            weight.panels.data_ptr(),
            address(bias),
            out.data_ptr(),
            rows,
            weight.outputs,
            weight.inputs,
            len(weight.panels),
            how,
            is_bfloat16,
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for the rows of a product")
        return out


def _is_bfloat16(dtype: torch.dtype) -> bool:
    if dtype not in _ROWS:
        raise ValueError(f"rows must be float32 or bfloat16, got {dtype}")
    return dtype == torch.bfloat16
