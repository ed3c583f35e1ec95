"""Prompts by cuDNN over the paged cache as it lies, through `nvidia-cudnn-frontend`.

All graphs are built at the first call, which is the trial's: what was not built by then is not
served. It is never imported unless it is asked for.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline_engine.running.prefill.attention import (
    Cache,
    Chunk,
    Prompts,
    RefusedError,
    Scores,
)
from paceline_engine.running.prefill.cudnn_graphs import (
    LADDER,
    MAX_ELEMENTS,
    Geometry,
    Rung,
    Uid,
    build,
    rung_of,
)

PACKAGE = "cudnn"
WORKSPACE_BYTES = 64 << 20
"""What a graph may ask for; one that asks for more is left out."""
BUILD_S = 60.0
"""After which no further graph is begun, while the engine starts."""
HEAD_SIZES = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)

_log = logging.getLogger(__name__)


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
        self._handle: Any = None
        self._geometry: Geometry | None = None
        self._graphs: dict[Rung, Any] = {}
        self._workspace: Tensor | None = None
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
        return (
            is_plain and is_laid_out and is_usual and is_power and keys.numel() <= MAX_ELEMENTS
        ) and self._geometry in {None, _geometry(self._geometry, keys, scores)}

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """See `PrefillAttention`."""
        if self._geometry is None:
            self._build(q, cache, scores)
        geometry, rung = self._geometry, self._rung(prompts.chunks)
        assert geometry is not None
        if rung is None:
            raise RefusedError("no graph of cuDNN was built for such steps")
        if self._step is None or self._step[0] is not prompts:
            self._step = prompts, step_tables(prompts, geometry, rung)
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
            self._library.set_stream(handle=self._handle, stream=stream)
        # Addresses: a cache has fewer blocks than its graph declares.
        addresses = {int(uid): buffer.data_ptr() for uid, buffer in buffers.items()}
        assert self._workspace is not None
        self._graphs[rung].execute(addresses, self._workspace.data_ptr(), handle=self._handle)
        return out

    def _rung(self, chunks: tuple[Chunk, ...]) -> Rung | None:
        return rung_of(chunks, LADDER if self._geometry is None else tuple(self._graphs))

    def _build(self, q: Tensor, cache: Cache, scores: Scores) -> None:
        """Build what the ladder has, in bounded time."""
        block_size, num_kv_heads, head_size = cache.keys.shape[1:]
        geometry = Geometry(
            q.shape[1], num_kv_heads, head_size, block_size, q.dtype, scores.scale
        )
        self._handle = self._library.create_handle()
        begun_s = self._clock()
        refusal = "not one was built in time"
        sizes_bytes = [1]
        for rung in LADDER:
            if self._clock() - begun_s > BUILD_S:
                break
            try:
                graph = build(self._library, geometry, rung, {"handle": self._handle})
            except self._library.cudnnGraphNotSupportedError as error:
                refusal = str(error).partition("\n")[0]
                continue
            num_bytes = graph.get_workspace_size()
            if num_bytes > WORKSPACE_BYTES:
                refusal = f"a graph wants {num_bytes} bytes, where {WORKSPACE_BYTES} are set aside"
                continue
            sizes_bytes.append(num_bytes)
            self._graphs[rung] = graph
        if not self._graphs:
            raise RefusedError(f"cuDNN built no graph for such heads here: {refusal}")
        self._workspace = torch.empty(max(sizes_bytes), dtype=torch.uint8, device=q.device)
        self._geometry = geometry
        _log.info(
            "prompts by cudnn: %d of %d graphs were built in %.1f s",
            len(self._graphs),
            len(LADDER),
            self._clock() - begun_s,
        )


def _geometry(built: Geometry | None, keys: Tensor, scores: Scores) -> Geometry | None:
    """What a layer would need, of the query heads that were built for."""
    if built is None:
        return None
    _, block_size, num_kv_heads, head_size = keys.shape
    num_q_heads = built.num_q_heads
    return Geometry(num_q_heads, num_kv_heads, head_size, block_size, keys.dtype, scores.scale)


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
