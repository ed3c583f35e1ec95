"""Prompts by cuDNN over the paged cache as it lies, through `nvidia-cudnn-frontend`.

All graphs are built at the first call, which is the trial's: what was not built by then is not
served. It is never imported unless it is asked for.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline_engine.attention.prefill.attention import Cache, Chunk, Prompts, RefusedError, Scores
from paceline_engine.attention.prefill.cudnn_built import Built, build_all, geometry_of
from paceline_engine.attention.prefill.cudnn_graphs import (
    LADDER,
    MAX_ELEMENTS,
    Geometry,
    Rung,
    Uid,
    rung_of,
)

PACKAGE = "cudnn"
HEAD_SIZES = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class StepTables:
    """A step's prompts as a graph of some rung reads them; all int32."""

    q_lens: Tensor  # [sequences]
    kv_lens: Tensor  # [sequences]
    offsets: Tensor  # [sequences + 1], of each sequence's first query among all, in elements
    table: Tensor  # [sequences, table_width]


def step_tables(prompts: Prompts, geometry: Geometry, rung: Rung) -> StepTables:
    """Pad a step to its rung; nothing waits for the device."""
    more = rung.sequences - len(prompts.chunks)
    bounds = prompts.cu_seqlens.to(torch.int32)
    offsets = bounds * (geometry.num_q_heads * geometry.head_size)
    table = prompts.block_table[:, : geometry.table_width].to(torch.int32)
    wider = geometry.table_width - table.shape[1]
    return StepTables(
        functional.pad(bounds.diff(), (0, more)),
        # A sequence that is none has no query, and one key: a softmax of nothing is asked of no one
        functional.pad(prompts.context_lens.to(torch.int32), (0, more), value=1),
        torch.cat([offsets, offsets[-1:].expand(more)]),
        functional.pad(table, (0, wider, 0, more)).contiguous(),
    )


class CudnnPrefill:
    """Implements `PrefillAttention`: whole prompts and later chunks of layers without a window."""

    name = "cudnn"
    needs = (
        "keys and values in float16 or bfloat16, in heads of 64, 128 or 256 and blocks of a power "
        "of two, without a window or a soft cap"
    )

    def __init__(self, library: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._library, self._clock = library, clock
        self._built: Built | None = None
        self._step: tuple[Prompts, StepTables] | None = None

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:
        """Steps of a shape that was built; before any was, those of the whole ladder."""
        return self._rung(chunks) is not None

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:
        """See `PrefillAttention`."""
        keys = cache.keys
        block_size, head_size = keys.shape[1], keys.shape[-1]
        is_plain = cache.exponents is None and scores.window is None and scores.softcap is None
        is_laid_out = keys.is_contiguous() and cache.values.is_contiguous()
        is_usual = keys.dtype in DTYPES and head_size in HEAD_SIZES
        is_power = block_size & (block_size - 1) == 0
        is_known = self._built is None or self._built.serves(keys, scores.scale)
        is_small = keys.numel() <= MAX_ELEMENTS
        return is_plain and is_laid_out and is_usual and is_power and is_small and is_known

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """See `PrefillAttention`."""
        built = self._built
        if built is None:
            of = geometry_of(q.shape[1], cache.keys, scores.scale)
            built = self._built = build_all(self._library, of, q.device, self._clock)
        rung = self._rung(prompts.chunks)
        if rung is None:
            raise RefusedError("no graph of cuDNN was built for such steps")
        if self._step is None or self._step[0] is not prompts:
            self._step = prompts, step_tables(prompts, built.geometry, rung)
        tables = self._step[1]
        packed = q[: prompts.num_tokens].contiguous()
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        buffers = {
            Uid.Q: packed,
            Uid.KEYS: cache.keys,
            Uid.VALUES: cache.values,
            Uid.OUT: out,
            Uid.KEY_TABLE: tables.table,
            Uid.VALUE_TABLE: tables.table,
            Uid.Q_LENS: tables.q_lens,
            Uid.KV_LENS: tables.kv_lens,
            Uid.OFFSETS: tables.offsets,
        }
        if q.is_cuda:
            stream = torch.cuda.current_stream(q.device).cuda_stream
            self._library.set_stream(handle=built.handle, stream=stream)
        # Addresses: a cache has fewer blocks than its graph declares.
        addresses = {int(uid): buffer.data_ptr() for uid, buffer in buffers.items()}
        built.graphs[rung].execute(addresses, built.workspace.data_ptr(), handle=built.handle)
        return out

    def _rung(self, chunks: tuple[Chunk, ...]) -> Rung | None:
        return rung_of(chunks, LADDER if self._built is None else tuple(self._built.graphs))


def is_installed() -> bool:
    """Whether it could be imported; it is not."""
    return find_spec(PACKAGE) is not None


def cudnn_prefill() -> CudnnPrefill:
    """Make it of the installed package. Raises RefusedError where there is none."""
    if not is_installed():
        raise RefusedError("the package nvidia-cudnn-frontend is not installed")
    try:
        return CudnnPrefill(import_module(PACKAGE))
    except Exception as error:  # a package of some other CUDA raises whatever it likes
        first_line = str(error).partition("\n")[0]
        raise RefusedError(f"its import raised {type(error).__name__}: {first_line}") from error
