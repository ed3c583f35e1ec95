"""FlashInfer's own wrapper, where it is installed: only its compiled kernels are stood in for.

`pip install 'paceline[flashinfer]'` brings it; CI has not got it. It needs no GPU for this.
"""

import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline_engine.attention.prefill.attention import Cache, Scores
from paceline_engine.attention.prefill.flashinfer_paged import PACKAGE, FlashInferPrefill
from paceline_testing.flashinfer import (
    BatchPrefillWithPagedKVCacheWrapper,
    PagedPlan,
    attend_by_pages,
)
from paceline_testing.prefill import a_cache, attended, prompts_of, some_queries

pytestmark = [
    pytest.mark.skipif(find_spec(PACKAGE) is None, reason="flashinfer-python is not installed"),
    pytest.mark.filterwarnings("ignore"),  # those of its imports are its own
]
CAUSAL, NHD = 1, 0


class CompiledDouble:
    """A module as its compiler gives it, for FA2: planned and run with what the wrapper passes."""

    def plan(self, *arguments: Any) -> list[int]:
        """Look at what its planner on the host would read."""
        assert [one.device.type for one in arguments[3:6]] == ["cpu"] * 3
        self.is_causal, self.window_left = arguments[14:16]
        return [0]

    def paged_run(self, *arguments: Any) -> None:
        """Attend with what the kernel would read."""
        q, keys, values, qo_indptr, kv_indptr, kv_indices, last_page_len, out = arguments[3:11]
        mask, layout, window_left = arguments[12:15]
        soft_cap, scale = arguments[22:24]
        assert (mask, layout, window_left) == (CAUSAL, NHD, self.window_left)
        assert self.is_causal
        plan = PagedPlan(
            qo_indptr.tolist(),
            kv_indptr.tolist(),
            kv_indices,
            last_page_len.tolist(),
            q.shape[1],
            keys.shape[2],
            q.shape[2],
            keys.shape[1],
            scale,
            window_left,
            soft_cap,
            q.dtype,
            keys.dtype,
        )
        attend_by_pages(q, keys, values, plan, out)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The real one, on a CPU."""
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", str(tmp_path))
    module = import_module(PACKAGE)
    prefill = import_module(f"{PACKAGE}.prefill")
    empty = torch.empty

    def pageable(*sizes: Any, pin_memory: bool = False, **options: Any) -> Tensor:  # noqa: ARG001 - there is no GPU to lock pages for
        return empty(*sizes, **options)

    monkeypatch.setattr(torch, "empty", pageable)
    monkeypatch.setattr(prefill, "get_batch_prefill_module", lambda *_arguments: CompiledDouble())
    monkeypatch.setattr(prefill, "determine_attention_backend", lambda *_, **__: "fa2")
    monkeypatch.setattr(prefill, "device_support_pdl", lambda _device: False)
    return module


@pytest.mark.parametrize("scores", [Scores(0.2), Scores(0.3, window=8, softcap=3.0)], ids=str)
def test_what_we_hand_over_arrives_at_the_kernels(package: ModuleType, scores: Scores) -> None:
    """Through all that the wrapper checks, copies and reorders on the way."""
    back_end = FlashInferPrefill(package.BatchPrefillWithPagedKVCacheWrapper)
    cache = a_cache(300, 2, 64, torch.float16)

    for chunks in ([(5, 20), (9, 9), (1, 33)], [(30, 41)]):
        prompts = prompts_of(chunks, 300, padding=2)
        q = some_queries(prompts.num_tokens + 2, 4, 64, torch.float16)
        back_end(q, cache, prompts, scores)  # the first layer's: it is planned
        seen = back_end(q, cache, prompts, scores)
        wide = Cache(cache.keys.float(), cache.values.float(), None)
        wanted = attended(q.float(), wide, prompts, scores)
        torch.testing.assert_close(seen.float(), wanted, atol=5e-3, rtol=0.0)


@pytest.mark.parametrize("method", ["__init__", "plan", "run"])
def test_our_double_has_its_signature(package: ModuleType, method: str) -> None:
    """Names, order and defaults: a version that differs is told here first."""

    def shape(of: type) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(getattr(of, method)).parameters.values()
        return [(one.name, one.kind, one.default) for one in parameters]

    ours = shape(BatchPrefillWithPagedKVCacheWrapper)
    assert shape(package.BatchPrefillWithPagedKVCacheWrapper) == ours
