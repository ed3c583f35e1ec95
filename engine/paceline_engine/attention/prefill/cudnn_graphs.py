"""Attention graphs of cuDNN over paged keys and values: a few, of rounded shapes, built at start.

A graph has a shape: sequences, longest chunk, width of the table. A step is padded to the first
rung of a ladder that holds it, so that no graph is ever built while the engine serves. Names and
rules are those of nvidia-cudnn-frontend 1.32.0 (`pygraph.sdpa`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from paceline_engine.attention.prefill.attention import Chunk

MAX_CONTEXT = 131_072
"""Tokens that a table names at most; a kernel reads as many as a sequence has."""
MAX_ELEMENTS = 1 << 31
"""Of one layer's keys: offsets of 32 bits reach no further."""


class Rung(NamedTuple):
    """What a graph is built for, at most."""

    sequences: int
    tokens: int
    """Of the longest chunk."""


LADDER = (Rung(8, 256), Rung(1, 2048), Rung(32, 256), Rung(1, 8192), Rung(8, 2048))
"""By the tiles that a kernel is launched for, most of which a small step leaves idle."""


class Uid(IntEnum):
    """What a graph reads and writes, by the number under which its address is handed over."""

    Q = 1
    KEYS = 2
    VALUES = 3
    OUT = 4
    KEY_TABLE = 5
    VALUE_TABLE = 6
    Q_LENS = 7
    KV_LENS = 8
    OFFSETS = 9


@dataclass(frozen=True, slots=True)
class Geometry:
    """What all graphs of a model have in common."""

    num_q_heads: int
    num_kv_heads: int
    head_size: int
    block_size: int
    dtype: torch.dtype
    scale: float

    @property
    def table_width(self) -> int:
        """Blocks of the longest context."""
        return -(-MAX_CONTEXT // self.block_size)


def rung_of(chunks: Sequence[Chunk], rungs: Sequence[Rung] = LADDER) -> Rung | None:
    """Find the first of `rungs` that holds a step; None: there is none."""
    if not chunks or max(chunk.context for chunk in chunks) > MAX_CONTEXT:
        return None
    longest = max(chunk.tokens for chunk in chunks)
    return next((r for r in rungs if len(chunks) <= r.sequences and longest <= r.tokens), None)


def build(library: Any, geometry: Geometry, rung: Rung, target: Mapping[str, object]) -> Any:
    """Declare a graph and have cuDNN compile it for `target`: a handle, or a device described.

    Raises what cuDNN raises: `cudnnGraphNotSupportedError` where no engine of it takes the graph.
    """
    graph = declared(library, geometry, rung, target)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([library.heur_mode.A, library.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    return graph


def declared(library: Any, geometry: Geometry, rung: Rung, target: Mapping[str, object]) -> Any:
    """Declare a graph; nothing is compiled."""
    of_type, at = library.data_type, geometry
    io_type = of_type.HALF if at.dtype == torch.float16 else of_type.BFLOAT16
    graph = library.pygraph(
        io_data_type=io_type,
        intermediate_data_type=of_type.FLOAT,
        compute_data_type=of_type.FLOAT,
        **target,
    )

    def tensor(uid: Uid, dim: list[int], stride: list[int], kind: Any) -> Any:
        return graph.tensor(
            name=uid.name.lower(), dim=dim, stride=stride, data_type=kind, uid=int(uid)
        )

    def numbers(uid: Uid, rows: int, columns: int = 1) -> Any:
        return tensor(uid, [rows, 1, columns, 1], [columns, columns, 1, 1], of_type.INT32)

    # Tokens lie one after the other, each with all its heads: dimensions are cuDNN's
    # [sequences, heads, tokens, size], strides are where ours lie.
    token = at.num_q_heads * at.head_size
    packed_dim = [rung.sequences, at.num_q_heads, rung.tokens, at.head_size]
    packed_stride = [rung.tokens * token, at.head_size, token, 1]
    q = tensor(Uid.Q, packed_dim, packed_stride, io_type)
    offsets = numbers(Uid.OFFSETS, rung.sequences + 1)
    q.set_ragged_offset(offsets)
    # The blocks of any cache: the trial's has fewer than the model's, and both go through the same
    # graph. Which ones are read is the table's to say.
    row = at.num_kv_heads * at.head_size
    num_blocks = MAX_ELEMENTS // (at.block_size * row)
    paged_dim = [num_blocks, at.num_kv_heads, at.block_size, at.head_size]
    paged_stride = [at.block_size * row, at.head_size, row, 1]
    out, _ = graph.sdpa(
        name="prefill",
        q=q,
        k=tensor(Uid.KEYS, paged_dim, paged_stride, io_type),
        v=tensor(Uid.VALUES, paged_dim, paged_stride, io_type),
        generate_stats=False,
        attn_scale=at.scale,
        use_padding_mask=True,
        seq_len_q=numbers(Uid.Q_LENS, rung.sequences),
        seq_len_kv=numbers(Uid.KV_LENS, rung.sequences),
        diagonal_alignment=library.diagonal_alignment.BOTTOM_RIGHT,
        diagonal_band_right_bound=0,
        paged_attention_k_table=numbers(Uid.KEY_TABLE, rung.sequences, at.table_width),
        paged_attention_v_table=numbers(Uid.VALUE_TABLE, rung.sequences, at.table_width),
        paged_attention_max_seq_len_kv=at.table_width * at.block_size,
    )
    out.set_output(True).set_uid(int(Uid.OUT)).set_data_type(io_type)
    out.set_dim(packed_dim).set_stride(packed_stride).set_ragged_offset(offsets)
    return graph
