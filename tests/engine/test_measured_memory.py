"""On a GPU the KV cache has what a trial of full steps and a sample of graphs leave of it."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.attention.prefill.prompts import PromptChunk
from paceline_engine.core.graph_sizes import decode_sizes, mixed_sizes
from paceline_engine.errors import DoesNotFit
from paceline_engine.loading import assembly, model_trial
from paceline_engine.loading.measured_memory import (
    MeasuredMemory,
    bytes_of_graphs,
    measured_kv_bytes,
)
from paceline_engine.loading.memory_gauge import MemoryGauge, Reading
from paceline_engine.loading.memory_trial import measure_trial
from paceline_engine.profiling.every_variant import widest_steps
from paceline_engine.settings import Settings
from paceline_testing.cuda_stand_ins import FakeGpu
from paceline_testing.engines import a_capacity
from paceline_testing.fake_gpu_model import load_on_fake_gpu
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire.limits import Capacity

GIB, MIB = 1 << 30, 1 << 20
SETTINGS = Settings(model_uri="file:///model")
SOME_BYTES = st.integers(0, 200 * GIB)
MEASURED = st.builds(MeasuredMemory, SOME_BYTES, SOME_BYTES, SOME_BYTES, SOME_BYTES, SOME_BYTES)
CAPACITIES = st.builds(
    a_capacity,
    max_batch_size=st.integers(1, 300),
    max_token_budget=st.integers(1, 600),
    block_size=st.sampled_from((1, 4, 16)),
    max_model_len=st.integers(2, 500),
)


@settings(deadline=None)
@given(MEASURED, st.floats(0.1, 1.0), st.none() | SOME_BYTES)
def test_all_parts_fit_beside_each_other(
    measured: MeasuredMemory, fraction: float, wanted: int | None
) -> None:
    """The cache never has what a step, the driver, graphs or the reserve need; or it is refused."""
    asked = SETTINGS.model_copy(
        update={"kv_cache_memory_fraction": fraction, "kv_cache_bytes": wanted}
    )
    others = measured.step_bytes + measured.outside_bytes + measured.graph_bytes
    reserved = 0 if wanted is not None else int(measured.total_bytes * (1 - fraction))
    needed = reserved + others + (1 if wanted is None else wanted)
    if needed > measured.free_bytes:
        with pytest.raises(DoesNotFit) as refused:
            measured_kv_bytes(measured, asked)
        for name in ("MAX_TOKEN_BUDGET", "MAX_BATCH_SIZE", "KV_CACHE_MEMORY_FRACTION"):
            assert f"PACELINE_ENGINE_{name}" in str(refused.value)
        return
    kv = measured_kv_bytes(measured, asked)
    assert kv + others + reserved <= measured.free_bytes
    assert kv == wanted or wanted is None


@settings(deadline=None)
@given(MEASURED, st.sampled_from(("step_bytes", "outside_bytes", "graph_bytes")), SOME_BYTES)
def test_whatever_takes_more_leaves_less(measured: MeasuredMemory, part: str, more: int) -> None:
    """By as much."""
    changes: dict[str, Any] = {part: getattr(measured, part) + more}
    assert replace(measured, **changes).left_bytes == measured.left_bytes - more


@settings(deadline=None)
@given(st.lists(st.integers(0, GIB), min_size=1, max_size=8), st.integers(0, 400))
def test_all_graphs_keep_no_less_than_the_sample(taken: list[int], more: int) -> None:
    """The first counts once, the others by their mean."""
    free = [sum(taken[index:]) for index in range(len(taken) + 1)]
    num_graphs = len(taken) + more

    found = bytes_of_graphs(free, num_graphs)

    assert found >= sum(taken)
    mean = sum(taken[1:]) / (len(taken) - 1) if taken[1:] else taken[0]
    assert found == pytest.approx(taken[0] + mean * (num_graphs - 1), abs=num_graphs)


def test_memory_that_others_free_meanwhile_is_no_negative_graph() -> None:
    """The driver tells of all processes."""
    assert bytes_of_graphs([5, 9, 12], 100) == 0
    assert bytes_of_graphs([5], 0) == 0


class FakeGauge:
    """A GPU of 1,000 bytes. Implements `MemoryGauge`."""

    def __init__(self) -> None:
        self.taken, self.most, self.outside = 600, 600, 50
        self.num_settled = 0

    def settle(self) -> None:
        self.most = self.taken
        self.num_settled += 1

    def read(self) -> Reading:
        return Reading(1000, 1000 - self.taken - self.outside, self.taken, self.most)

    def take(self, num_bytes: int) -> None:
        self.taken += num_bytes
        self.most = max(self.most, self.taken)


class FakeTrial:
    """Takes a cache of 10 bytes, and tables of 7. Implements `Trial`."""

    cache_bytes = 10

    def __init__(self, gauge: FakeGauge) -> None:
        self._gauge = gauge
        gauge.take(500)  # to choose algorithms with
        gauge.take(17 - 500)

    def run_steps(self) -> None:
        self._gauge.take(90)
        self._gauge.take(-40)  # given back to the driver, as where it ran short
        self._gauge.outside += 23

    def graph_bytes(self, gauge: MemoryGauge) -> int:
        assert gauge is self._gauge
        self._gauge.take(200)
        return 33


def test_a_trial_is_measured_by_its_parts() -> None:
    """Tables and the widest moment, without the small cache and without what was tried before."""
    gauge = FakeGauge()

    measured = measure_trial(gauge, lambda: FakeTrial(gauge))

    assert measured == MeasuredMemory(
        total_bytes=1000, free_bytes=350, step_bytes=97, outside_bytes=23, graph_bytes=33
    )
    assert gauge.num_settled == 3


@settings(deadline=None)
@given(CAPACITIES)
def test_the_widest_steps_have_all_tokens_and_all_rows(capacity: Capacity) -> None:
    """As far as sequences may be that long; and no step is beyond the capacity."""
    batches = list(widest_steps(capacity))
    most_rows = min(capacity.max_batch_size, capacity.max_token_budget)
    room = most_rows * (capacity.max_model_len - 1)

    for batch in batches:
        rows = [chunk.request.row for chunk in batch.chunks]
        assert rows == list(range(len(rows)))
        assert len(rows) <= capacity.max_batch_size
        assert all(0 < chunk.count < capacity.max_model_len for chunk in batch.chunks)
    prompts = [batch for batch in batches if not batch.num_decodes]
    assert all(batch.num_tokens <= capacity.max_token_budget for batch in prompts)
    assert max(batch.num_tokens for batch in prompts) == min(capacity.max_token_budget, room)
    assert max(len(batch.chunks) for batch in prompts) == most_rows
    assert batches[-1].num_decodes == capacity.max_batch_size


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16)
    return folder


GPU = FakeGpu(total_memory=GIB, step_bytes=50 * MIB, library_bytes=20 * MIB, graph_bytes=2 * MIB)
SMALL: dict[str, Any] = {"kv_cache_bytes": None, "kv_cache_memory_fraction": 0.5}


@pytest.mark.parametrize("graphs", ["on", "off"])
def test_the_cache_has_what_is_measured_to_be_left(
    folder: Path, graphs: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a GPU of 1 GiB: a tenth is gone, half reserved, the rest by steps, libraries, graphs."""
    with caplog.at_level(logging.INFO):
        loaded = load_on_fake_gpu(folder, gpu=GPU, graphs=graphs, **SMALL).loaded

    num_graphs = len(decode_sizes(8)) + len(mixed_sizes(64))
    taken = 70 * MIB + (2 * MIB * num_graphs if graphs == "on" else 0)
    per_block = loaded.info.kv_bytes_per_token * 16
    left = GIB * 9 // 10 - GIB // 2 - taken
    trial = 16 * per_block  # not part of a step
    assert loaded.capacity.num_blocks == (left + trial) // per_block
    (said,) = [each for each in caplog.messages if each.startswith("memory: ")]
    for part in ("free after the weights", "a full step 50 MiB", "libraries 20 MiB", "KV cache"):
        assert part in said
    assert f"graphs {2 * num_graphs if graphs == 'on' else 0} MiB" in said


def test_a_cache_of_a_set_size_must_fit_beside_a_full_step(folder: Path) -> None:
    """It is kept where it does."""
    fits, too_large = 800 * MIB, 860 * MIB
    loaded = load_on_fake_gpu(folder, gpu=GPU, kv_cache_bytes=fits).loaded
    assert loaded.capacity.num_blocks == fits // (loaded.info.kv_bytes_per_token * 16)

    with pytest.raises(
        DoesNotFit, match=r"860 MiB \(PACELINE_ENGINE_KV_CACHE_BYTES\), but 85\d MiB"
    ):
        load_on_fake_gpu(folder, gpu=GPU, kv_cache_bytes=too_large)


def test_a_full_step_that_runs_out_of_memory_is_explained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fits in no case, with however small a cache."""

    def exhaust(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(model_trial, "launch_widest", exhaust)
    with pytest.raises(DoesNotFit, match=r"in a full step .*Lower .*MAX_BATCH_SIZE \(8\)"):
        load_on_fake_gpu(folder)


def test_what_later_chunks_gather_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the longest context that a step may have, behind as many tokens as it may compute."""
    chosen = PrefillChoice({}, {PromptChunk(8, 16): True})
    monkeypatch.setattr(assembly, "choose", lambda *_: chosen)

    model = load_on_fake_gpu(folder, gpu=GPU, prefill_attention="auto", **SMALL)

    named = [one for one in model.fake.record.launches if "flash_attention" in one.name]
    config, longest = model.loaded.runner._decoder.config, model.loaded.capacity.max_model_len - 1
    pairs = sum(range(longest - 64 + 1, longest + 1))
    assert {one.flops for one in named} == {4 * pairs * config.num_q_heads * config.head_size}
    assert len(named) == config.num_layers


def test_a_draft_model_is_measured_too(folder: Path) -> None:
    """Its decodes are graphs of their own."""
    asked: dict[str, Any] = {"speculative": "draft", "draft_model_uri": f"file://{folder}"}
    alone = load_on_fake_gpu(folder, gpu=GPU, graphs="on", **SMALL).loaded
    both = load_on_fake_gpu(folder, gpu=GPU, graphs="on", **SMALL, **asked).loaded

    per_block = alone.info.kv_bytes_per_token * 16
    drafts = len(decode_sizes(8)) * 2 * MIB
    expected = alone.capacity.num_blocks * per_block - drafts
    assert both.capacity.num_blocks == pytest.approx(expected / (2 * per_block), abs=20)
