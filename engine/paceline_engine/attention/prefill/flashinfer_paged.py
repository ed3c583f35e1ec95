"""Prompts by FlashInfer, which reads the paged cache as it lies: later chunks, windows, soft caps.

Its `BatchPrefillWithPagedKVCacheWrapper` is planned once a step for each kind of layer, on the
host, and run for every layer (documented as of flashinfer-python 0.7.2). On compute capability 9.0
it takes its FA3 kernels, elsewhere those of FA2. It is never imported unless it is asked for.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from paceline_engine.attention.prefill.attention import Cache, Chunk, Prompts, RefusedError, Scores
from paceline_engine.attention.prefill.pages import page_bounds, page_ids

PACKAGE = "flashinfer"
WORKSPACE_BYTES = 128 << 20
"""Where contexts that it splits lie in parts; as much as its documentation recommends."""
KEPT_BYTES = WORKSPACE_BYTES + 2 * (8 << 20)
"""With the plans of two kinds of layers, 8 MiB each."""
HEAD_SIZES = (64, 128, 256)
DTYPES = (torch.float16, torch.bfloat16)

_KERNELS = "flashinfer_jit_cache"
_NO_COMPILING = "FLASHINFER_DISABLE_JIT"
_NOTHING_COMPILED = "MissingJITCacheError"

_log = logging.getLogger(__name__)

MakeWrapper = Callable[..., Any]
"""As the class `BatchPrefillWithPagedKVCacheWrapper`."""


@dataclass(slots=True)
class _Planned:
    """One wrapper, of one kind of layer, and what it was planned for."""

    wrapper: Any
    prompts: Prompts | None = None
    copied: torch.cuda.Event | None = None
    """When the GPU has the plan, whose page-locked memory the next plan is written to."""


class FlashInferPrefill:
    """Implements `PrefillAttention`: every chunk, of a model in two bytes and of usual heads."""

    name = "flashinfer"
    needs = "keys and values in float16 or bfloat16, in heads of 64, 128 or 256"

    def __init__(self, make_wrapper: MakeWrapper) -> None:
        self._make_wrapper = make_wrapper
        self._workspace: Tensor | None = None
        self._planned: dict[Scores, _Planned] = {}

    def serves(self, chunks: tuple[Chunk, ...]) -> bool:  # noqa: ARG002 - it serves any
        """See `PrefillAttention`."""
        return True

    def serves_layer(self, cache: Cache, scores: Scores) -> bool:  # noqa: ARG002 - any scores
        """See `PrefillAttention`."""
        is_plain = cache.exponents is None and cache.keys.dtype in DTYPES
        return is_plain and cache.keys.shape[-1] in HEAD_SIZES

    def __call__(self, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> Tensor:
        """See `PrefillAttention`."""
        planned = self._planned.get(scores)
        if planned is None:
            planned = self._planned[scores] = _Planned(self._wrapper(q.device))
        try:
            if planned.prompts is not prompts:
                _plan(planned, q, cache, prompts, scores)
            out = torch.empty_like(q)
            num_tokens = prompts.num_tokens
            pages = (cache.keys, cache.values)
            planned.wrapper.run(q[:num_tokens], pages, out=out[:num_tokens])
        except RuntimeError as error:
            if type(error).__name__ == _NOTHING_COMPILED:
                raise RefusedError("no kernel of it was compiled for such heads") from error
            raise
        out[num_tokens:] = 0
        return out

    def _wrapper(self, device: torch.device) -> Any:
        # Layers run one after the other, so that all wrappers may leave their parts in one place.
        if self._workspace is None:
            self._workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return self._make_wrapper(self._workspace, "NHD")


def _plan(planned: _Planned, q: Tensor, cache: Cache, prompts: Prompts, scores: Scores) -> None:
    if planned.copied is not None:
        planned.copied.synchronize()
    planned.prompts = None  # should this raise, the former plan is not taken for this one
    _, page_size, num_kv_heads, head_size = cache.keys.shape
    bounds = page_bounds(prompts.chunks, page_size)
    planned.wrapper.plan(
        torch.tensor(bounds.tokens, dtype=torch.int32),
        torch.tensor(bounds.pages, dtype=torch.int32),
        page_ids(prompts.block_table, prompts.context_lens, page_size, bounds.pages[-1]),
        torch.tensor(bounds.last_page_lens, dtype=torch.int32),
        q.shape[1],
        num_kv_heads,
        head_size,
        page_size,
        causal=True,
        sm_scale=scores.scale,
        # Keys before the token's own: a window counts that one too.
        window_left=-1 if scores.window is None else scores.window - 1,
        logits_soft_cap=scores.softcap,
        q_data_type=q.dtype,
        kv_data_type=cache.keys.dtype,
    )
    if q.is_cuda:
        planned.copied = torch.cuda.Event()
        planned.copied.record(torch.cuda.current_stream(q.device))
    planned.prompts = prompts


def is_installed() -> bool:
    """Whether it could be imported; it is not."""
    return find_spec(PACKAGE) is not None


def flashinfer_prefill(*, compiles: bool) -> FlashInferPrefill:
    """Make it of the installed package, and of installed kernels unless it may compile some.

    Raises RefusedError where either is missing.
    """
    if not is_installed():
        raise RefusedError("the package flashinfer-python is not installed")
    if not compiles:
        if find_spec(_KERNELS) is None and _NO_COMPILING not in os.environ:
            raise RefusedError(
                "its compiled kernels (flashinfer-jit-cache) are not installed, and auto compiles "
                "none"
            )
        os.environ.setdefault(_NO_COMPILING, "1")
    elif find_spec(_KERNELS) is None:
        _log.info("prompts by flashinfer: what it lacks is compiled now, which can take minutes")
    try:
        module = import_module(PACKAGE)
        return FlashInferPrefill(module.BatchPrefillWithPagedKVCacheWrapper)
    except Exception as error:  # a package of some other torch raises whatever it likes
        first_line = str(error).partition("\n")[0]
        raise RefusedError(f"its import raised {type(error).__name__}: {first_line}") from error
