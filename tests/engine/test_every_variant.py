"""Steps before the first request: of every kind, within the capacity, and told of in the log."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from triton import knobs

from paceline_engine.profiling.every_variant import every_step
from paceline_testing.engines import a_capacity
from paceline_testing.fake_gpu_model import load_on_fake_gpu
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire.limits import Capacity

CAPACITIES = st.builds(
    a_capacity,
    max_batch_size=st.integers(1, 300),
    max_token_budget=st.integers(1, 600),
    block_size=st.sampled_from((1, 4, 16)),
    max_model_len=st.integers(1, 500),
)


@settings(deadline=None)
@given(CAPACITIES, st.booleans())
def test_every_step_fits_into_the_capacity(capacity: Capacity, has_adapters: bool) -> None:
    """Else it would write beyond what was allocated for the largest step."""
    for batch in every_step(capacity, slots=(None, 0) if has_adapters else (None,)):
        rows = [chunk.request.row for chunk in batch.chunks]
        assert rows == list(range(len(rows)))
        assert len(rows) <= capacity.max_batch_size
        most_tokens = max(capacity.max_token_budget, capacity.max_batch_size)
        assert batch.num_tokens <= most_tokens
        for chunk in batch.chunks:
            assert chunk.start + chunk.count <= capacity.max_model_len
            known = len(chunk.request.token_ids) + len(chunk.draft)
            assert chunk.start + chunk.count == known


def test_steps_are_of_every_kind() -> None:
    """Prompts, decodes, both, drafts; with adapters, and with what a request may ask for."""
    batches = list(every_step(a_capacity(), slots=(None, 0)))
    chunks = [chunk for batch in batches for chunk in batch.chunks]

    assert any(0 < batch.num_decodes < len(batch.chunks) for batch in batches)
    assert any(batch.num_drafted for batch in batches)
    assert {chunk.request.adapter_slot for chunk in chunks} == {None, 0}
    assert {chunk.request.sampling.pooling for chunk in chunks} == {None, "mean", "last"}
    asking = [chunk.request for chunk in chunks if not chunk.request.is_plain]
    assert any(request.constraint is not None for request in asking)
    assert any(request.sampling.logit_bias and request.sampling.logprobs for request in asking)


def test_a_start_tells_what_was_compiled_and_what_is_compiled_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """How many variants, of how many kernels, in which time; and later each that holds up all."""
    make_tiny_model(tmp_path, "llama", head_dim=16)
    before: Any = knobs.runtime.jit_post_compile_hook
    try:
        with caplog.at_level(logging.INFO):
            load_on_fake_gpu(tmp_path)
        started = [each.getMessage() for each in caplog.records if "variants" in each.getMessage()]
        caplog.clear()
        hook: Any = knobs.runtime.jit_post_compile_hook
        hook(fn=SimpleNamespace(name="_draw_kernel"), key="")
    finally:
        knobs.runtime.jit_post_compile_hook = before

    assert len(started) == 1
    assert "kernels compiled, or taken from Triton's cache, in " in started[0]
    warned = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert "_draw_kernel was compiled after the start: every request waited for it" in warned
