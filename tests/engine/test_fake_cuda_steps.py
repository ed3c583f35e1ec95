"""The engine's path on a GPU, computed on a fake one: nothing there waits in hiding."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.attention.prefill.sdpa import sdpa_prefill
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.engine.engine import EngineOptions
from paceline_engine.kv_cache.swap import BlockCopy, num_staged
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_testing.clock import ManualClock
from paceline_testing.fake_gpu_model import (
    BLOCK_SIZE,
    FakeGpuModel,
    a_request,
    a_step,
    load_on_fake_gpu,
)
from paceline_testing.tiny_adapter import make_tiny_adapter
from paceline_testing.tiny_engine import serve
from paceline_testing.tiny_model import SIZES, Family, make_tiny_model

LAYERS: int = SIZES["num_hidden_layers"]


class EveryToken:
    """Implements `Constraint`."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:  # noqa: ARG002 - the port's
        """See `Constraint`."""
        bitmask.fill(0xFFFFFFFF)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model for all tests."""
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16)
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> FakeGpuModel:
    """Steps are computed op by op."""
    return load_on_fake_gpu(folder, swap_bytes=1 << 18)


ASKED: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3},
    "penalised": {"repetition_penalty": 1.2, "presence_penalty": 0.5},
    "biased": {"logit_bias": {5: 1.0, 9: -3.0}},
    "told of": {"logprobs": 3},
    "not to end yet": {"min_tokens": 5, "stop_token_ids": (4, 5)},
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_steps_never_wait_in_hiding(model: FakeGpuModel, asked: dict[str, Any]) -> None:
    """Prompts, decodes, and both in one step; beside them others that ask for nothing."""
    requests = [a_request(0, **asked), a_request(1), a_request(2, 33, **asked)]

    alone = model.run(a_step(prompts=requests[:2]))
    mixed = model.run(a_step(requests[:2], requests[2:]))
    decodes = model.run(a_step(requests))

    assert [len(step.tokens) for step in (alone, mixed, decodes)] == [2, 3, 3]


def test_the_host_waits_where_it_says_so(model: FakeGpuModel) -> None:
    """For a buffer of two steps before, and for the tokens: no more in a step of decodes."""
    requests = [a_request(0), a_request(1)]
    model.run(a_step(prompts=requests))
    model.fake.record.clear()
    model.run(a_step(requests))

    assert model.fake.record.waits == ["Event.synchronize"] * 2


def test_drafts_are_verified(model: FakeGpuModel) -> None:
    """Also where there are more tokens than rows."""
    requests = [a_request(0), a_request(1), a_request(2)]
    model.run(a_step(prompts=requests))

    few = model.run(a_step(requests[:1], drafted=[(requests[1], (0, 0, 5))]))
    many = model.run(a_step(requests[:1], drafted=[(one, (0, 0, 5, 5)) for one in requests[1:]]))

    assert [len(step.tokens) for step in (few, many)] == [2, 3]


def test_blocks_are_swapped_through_pinned_memory(model: FakeGpuModel) -> None:
    """One wait for all of them, which their price is measured by."""
    swapper = model.loaded.swapper
    assert swapper is not None
    copies = [
        BlockCopy(block, block, is_out=is_out) for is_out in (True, False) for block in (1, 3)
    ]
    model.fake.record.clear()
    with model.fake.visible():
        swapper.run(copies)

    sent = [launch.name for launch in model.fake.record.launches]
    gathers, scatters = (
        [name] * 2 * LAYERS for name in ("aten.index_select.out", "aten.index_copy_.default")
    )
    out = ["cpu to cuda", *gathers, *["cuda to cpu"] * 2]
    assert sent == [*out, *["cpu to cuda"] * 3, *scatters]
    assert model.fake.record.waits == ["Stream.synchronize"]


def test_the_buffer_of_swapped_blocks_is_left_out_of_the_cache(folder: Path) -> None:
    """It is taken last, when the cache has all that was left."""
    asked: dict[str, Any] = {"kv_cache_bytes": None, "max_model_len": 64}
    plain, swapping = (
        load_on_fake_gpu(folder, **asked, swap_bytes=swap_bytes).loaded
        for swap_bytes in (0, 1 << 18)
    )
    swapper = swapping.swapper
    assert swapper is not None
    block_bytes = plain.info.kv_bytes_per_token * plain.capacity.block_size

    given_up = plain.capacity.num_blocks - swapping.capacity.num_blocks
    assert given_up == num_staged(swapper.num_slots, block_bytes) == swapper.num_slots


def test_a_constrained_row_gets_its_mask(model: FakeGpuModel) -> None:
    """Words of the bitmask go to the device out of pinned memory."""
    request = a_request(0)
    request.constraint = EveryToken()
    request.is_plain = False

    step = model.run(a_step(prompts=[request, a_request(1)]))

    assert len(step.tokens) == 2
    assert "_forbid_kernel" in {launch.name for launch in model.fake.record.launches}


READS: dict[str, dict[str, Any]] = {
    "logprobs of the prompt": {"prompt_logprobs": 2},
    "mean of its states": {"pooling": "mean"},
    "its last state": {"pooling": "last"},
}


@pytest.mark.parametrize("asked", READS.values(), ids=READS)
def test_prompts_are_read_without_a_hidden_wait(model: FakeGpuModel, asked: dict[str, Any]) -> None:
    """The rest of the step is not held up by who asks."""
    step = model.run(a_step(prompts=[a_request(0, **asked), a_request(1)]))

    assert step.prompt_logprobs or step.embeddings


def test_whole_prompts_attend_by_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SDPA was chosen; keys and values are gathered without a wait."""
    model = load_on_fake_gpu(folder)
    monkeypatch.setattr(PrefillChoice, "of_step", lambda *_: sdpa_prefill)
    requests = [a_request(0), a_request(1, 33)]
    names = [launch.name for launch in model.launches(a_step(prompts=requests))]

    assert names.count("aten.scaled_dot_product_attention.default") == 2 * LAYERS


def test_later_chunks_attend_by_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where SDPA was chosen: what each layer gathers is counted, and nothing of it waits."""
    model = load_on_fake_gpu(folder)
    monkeypatch.setattr(PrefillChoice, "of_step", lambda *_: sdpa_prefill)
    requests = [a_request(0, 33), a_request(1)]
    later = ScheduledChunk(requests[0], 20, 13, samples=True, is_decode=False)
    whole = ScheduledChunk(requests[1], 0, 20, samples=True, is_decode=False)

    launches = model.launches(Batch((later, whole), 0))

    named = [one for one in launches if "flash_attention" in one.name]
    assert len(named) == LAYERS  # a whole prompt has the other op
    config = model.loaded.runner._decoder.config
    pairs = sum(range(21, 34))
    assert {one.flops for one in named} == {4 * pairs * config.num_q_heads * config.head_size}
    gathers = [one for one in launches if one.name == "aten.index_select.default"]
    assert len(gathers) == 2 * 2 * LAYERS
    token_bytes = 2 * config.num_kv_heads * config.head_size
    assert gathers[0].written == -(-33 // BLOCK_SIZE) * BLOCK_SIZE * token_bytes


FORMS: dict[str, dict[str, Any]] = {
    "KV in FP8": {"kv_cache_dtype": "fp8"},
    "INT8": {"quantization": "int8"},
    "FP8": {"quantization": "fp8_dynamic"},
}


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
def test_other_forms_of_weights_and_cache(folder: Path, settings: dict[str, Any]) -> None:
    """Prompts, then decodes beside another prompt."""
    model = load_on_fake_gpu(folder, **settings)
    requests = [a_request(0), a_request(1)]
    model.run(a_step(prompts=requests[:1]))
    step = model.run(a_step(requests[:1], requests[1:]))

    assert len(step.tokens) == 2


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_other_families(tmp_path: Path, family: Family) -> None:
    """With biases, norms of heads, windows and soft caps."""
    make_tiny_model(tmp_path, family, head_dim=16)
    model = load_on_fake_gpu(tmp_path)
    requests = [a_request(0), a_request(1)]
    model.run(a_step(prompts=requests[:1]))
    step = model.run(a_step(requests[:1], requests[1:]))

    assert len(step.tokens) == 2


@pytest.fixture(scope="module")
def captured(folder: Path) -> FakeGpuModel:
    """Every graph is captured, and used."""
    model = load_on_fake_gpu(folder, graphs="on")
    runner = model.loaded.runner
    with model.fake.visible(), model.fake.loading():
        runner.capture_mixed(CudaGraphCapture(runner.device), [8, 64], lambda _done: None)
    return model


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_decodes_are_replayed(captured: FakeGpuModel, asked: dict[str, Any]) -> None:
    """Sampling that asks for more comes behind the graph, op by op."""
    requests = [a_request(0, **asked), a_request(1), a_request(2)]
    captured.run(a_step(prompts=requests))
    launches = captured.launches(a_step(requests))

    replayed = [launch for launch in launches if launch.in_graph]
    assert "_decode_kernel" in {launch.name for launch in replayed}
    assert all(launch.in_graph for launch in launches if launch.kind == "product")


def test_a_mixed_step_is_replayed(captured: FakeGpuModel) -> None:
    """Attention of prompts, too."""
    requests = [a_request(0), a_request(1)]
    captured.run(a_step(prompts=requests[:1]))
    launches = captured.launches(a_step(requests[:1], requests[1:]))

    attention = {launch.in_graph for launch in launches if launch.name == "_prefill_kernel"}
    assert attention == {True}
    assert any(launch.in_graph for launch in launches)


def test_a_request_is_served_to_its_end(captured: FakeGpuModel) -> None:
    """By the engine's own loop, with steps that overlap."""
    with captured.fake.visible():
        outputs = serve(captured.loaded, EngineOptions(overlap=True), {"a": 20, "b": 70, "c": 3})

    assert {name: len(tokens) for name, tokens in outputs.items()} == dict.fromkeys("abc", 5)


@pytest.mark.parametrize("graphs", ["off", "on"])
def test_adapters_are_used_and_loaded_without_a_hidden_wait(tmp_path: Path, graphs: str) -> None:
    """Beside rows that have none; another is loaded between two steps."""
    reference = make_tiny_model(tmp_path / "model", "llama", head_dim=16)
    make_tiny_adapter(tmp_path / "adapter", reference, seed=1)
    model = load_on_fake_gpu(tmp_path / "model", max_loras=2, max_lora_rank=8, graphs=graphs)
    requests = [a_request(0, slot=1), a_request(1), a_request(2, slot=0)]
    adapters = model.loaded.adapters
    assert adapters is not None
    model.run(a_step(prompts=requests[:2]))
    with model.fake.visible():
        adapters.load("a", "a", folder=tmp_path / "adapter", in_use=[1], replaces=False)
    model.run(a_step(requests[:2], requests[2:]))
    step = model.run(a_step(requests))

    assert len(step.tokens) == 3


def test_a_draft_model_drafts_and_is_verified(folder: Path, tmp_path: Path) -> None:
    """By the engine's own loop; the draft model's decodes are replayed."""
    make_tiny_model(tmp_path, "llama", head_dim=16, seed=1, num_hidden_layers=1)
    draft = f"file://{tmp_path}"
    model = load_on_fake_gpu(folder, speculative="draft", draft_model_uri=draft, graphs="on")
    loaded = model.loaded
    assert loaded.draft is not None
    with model.fake.visible():
        proposer = DraftModel(loaded.draft.runner, NoPacer(), loaded.capacity, ManualClock())
        proposer.warm_up()
        options = EngineOptions(draft_tokens=3, proposer=proposer)
        outputs = serve(loaded, options, {"a": 20, "b": 7})

    assert {name: len(tokens) for name, tokens in outputs.items()} == {"a": 5, "b": 5}
