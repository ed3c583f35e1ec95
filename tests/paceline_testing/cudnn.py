"""cuDNN's frontend in plain torch: graphs computed from the declared tensors and their addresses.

Names are those of nvidia-cudnn-frontend 1.32.0, as are the rules that are checked; nothing else of
it is here. What is read, is read from memory at the address handed over, by the declared
dimensions and strides: a wrong stride, table, offset or alignment gives other numbers.
"""

import ctypes
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Self

import torch
from torch import Tensor


class cudnnGraphNotSupportedError(RuntimeError):  # noqa: N801 - the name is theirs
    """No engine takes the graph."""


class DataType(Enum):
    """Of elements."""

    HALF = torch.float16
    BFLOAT16 = torch.bfloat16
    FLOAT = torch.float32
    INT32 = torch.int32


class HeurMode(Enum):
    """Of the engines that are proposed."""

    A = auto()
    FALLBACK = auto()


class DiagonalAlignment(Enum):
    """Of a causal mask."""

    TOP_LEFT = auto()
    BOTTOM_RIGHT = auto()


@dataclass
class Declared:
    """A tensor of a graph; it has no memory yet."""

    dim: list[int] = field(default_factory=list)
    stride: list[int] = field(default_factory=list)
    data_type: DataType = DataType.FLOAT
    uid: int = 0
    is_output: bool = False
    ragged_offset: "Declared | None" = None

    def set_output(self, value: bool) -> Self:
        self.is_output = value
        return self

    def set_uid(self, uid: int) -> Self:
        self.uid = uid
        return self

    def set_data_type(self, kind: DataType) -> Self:
        self.data_type = kind
        return self

    def set_dim(self, dim: list[int]) -> Self:
        self.dim = dim
        return self

    def set_stride(self, stride: list[int]) -> Self:
        self.stride = stride
        return self

    def set_ragged_offset(self, offset: "Declared") -> Self:
        self.ragged_offset = offset
        return self

    def at(self, address: int, start: int = 0) -> Tensor:
        """Look at what lies there, from element `start` on, as it is declared; nothing is read."""
        kind = self.data_type.value
        extent = 1 + sum((d - 1) * s for d, s in zip(self.dim, self.stride, strict=True))
        bytes_ = (ctypes.c_char * (extent * kind.itemsize)).from_address(
            address + start * kind.itemsize
        )
        return torch.frombuffer(bytes_, dtype=kind).as_strided(self.dim, self.stride)


class pygraph:  # noqa: N801 - the name is theirs
    """One attention."""

    def __init__(self, **options: Any) -> None:
        assert options["intermediate_data_type"] is options["compute_data_type"] is DataType.FLOAT
        self.options = options
        self.is_built = False
        self.num_calls = 0
        self.workspace_bytes = 100

    def tensor(self, *, name: str, **declared: Any) -> Declared:
        assert name
        return Declared(**declared)

    def sdpa(self, **arguments: Any) -> tuple[Declared, None]:
        assert arguments.pop("generate_stats") is False
        assert arguments.pop("use_padding_mask") is True
        assert arguments.pop("diagonal_band_right_bound") == 0
        assert arguments.pop("name")
        self.asked = arguments
        self.out = Declared()
        return self.out, None

    def validate(self) -> None:
        keys, table = self.asked["k"], self.asked["paged_attention_k_table"]
        block_size, longest = keys.dim[2], self.asked["paged_attention_max_seq_len_kv"]
        assert -(-longest // block_size) == table.dim[2], "its rule for the width of a table"
        assert block_size & (block_size - 1) == 0
        assert self.out.is_output

    def build_operation_graph(self) -> None: ...

    def create_execution_plans(self, modes: list[HeurMode]) -> None:
        assert modes == [HeurMode.A, HeurMode.FALLBACK]

    def check_support(self) -> None: ...

    def build_plans(self) -> None:
        self.is_built = True

    def get_workspace_size(self) -> int:
        return self.workspace_bytes

    def execute(self, addresses: dict[int, int], workspace: int, *, handle: object) -> None:
        assert self.is_built
        assert workspace
        assert handle is self.options["handle"]
        self.num_calls += 1
        asked = self.asked

        def read(of: Declared | None) -> list[int]:
            assert of is not None, "packed tensors have offsets"
            return [int(one) for one in of.at(addresses[of.uid]).flatten()]

        q, out = asked["q"], self.out
        q_lens, kv_lens = read(asked["seq_len_q"]), read(asked["seq_len_kv"])
        starts, ends = read(q.ragged_offset), read(out.ragged_offset)
        for row, (count, context) in enumerate(zip(q_lens, kv_lens, strict=True)):
            if count == 0:
                continue
            k, v = (
                _context(asked[of], asked[f"paged_attention_{of}_table"], addresses, row, context)
                for of in ("k", "v")
            )
            queries = _tokens(q, addresses, starts[row], count)
            group = q.dim[1] // asked["k"].dim[1]
            k, v = (one.repeat_interleave(group, 0).float() for one in (k, v))
            scores = queries.float() @ k.mT * asked["attn_scale"]
            is_bottom = asked["diagonal_alignment"] is DiagonalAlignment.BOTTOM_RIGHT
            by = context - count if is_bottom else 0
            visible = torch.ones(count, context, dtype=torch.bool).tril(by)
            weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
            attended = weights.to(queries.dtype).float() @ v
            _tokens(out, addresses, ends[row], count).copy_(attended)


def _tokens(of: Declared, addresses: dict[int, int], start: int, count: int) -> Tensor:
    """One sequence's [heads, tokens, size] among packed ones."""
    assert count <= of.dim[2], "a graph's longest chunk"
    one = Declared([1, of.dim[1], count, of.dim[3]], of.stride, of.data_type)
    return one.at(addresses[of.uid], start)[0]


def _context(
    of: Declared, table: Declared, addresses: dict[int, int], row: int, context: int
) -> Tensor:
    """One sequence's [heads, context, size], from the blocks of its row of the table."""
    block_size = of.dim[2]
    blocks = table.at(addresses[table.uid])[row, 0, : -(-context // block_size), 0]
    paged = of.at(addresses[of.uid])[blocks.long()]  # [blocks, heads, block, size]
    return paged.transpose(0, 1).flatten(1, 2)[:, :context]


class Library:
    """The module, with every graph that was made of it."""

    data_type, heur_mode, diagonal_alignment = DataType, HeurMode, DiagonalAlignment
    cudnnGraphNotSupportedError = cudnnGraphNotSupportedError  # noqa: N815 - the name is theirs

    def __init__(self) -> None:
        self.graphs: list[pygraph] = []

    def pygraph(self, **options: Any) -> pygraph:
        self.graphs.append(pygraph(**options))
        return self.graphs[-1]

    def create_handle(self) -> object:
        return object()
