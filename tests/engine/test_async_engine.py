"""The whole engine on a device that runs its work late and out of order answers as at once.

Staging, sampling beside the device, fetching, swapping, graphs, masks and drafts, all together.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.attention.prefill.prompts import PromptChunk
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.uri import Located
from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.drafting.draft_model import DraftModel
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.hardware.cores_reader import read_share
from paceline_engine.loading.dtype import DtypeChoice
from paceline_engine.loading.load import LoadedModel, load_checkpoint, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_engine.runner.token_copies import TokenCopies
from paceline_engine.settings import Settings
from paceline_testing.async_device import AT_ONCE, LATE, AsyncDevice, Schedule, any_schedule
from paceline_testing.async_device.ranks import TwoRanks
from paceline_testing.clock import ManualClock
from paceline_testing.mutated import mutated
from paceline_testing.tiny_adapter import make_tiny_adapter
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import (
    LoadAdapter,
    Output,
    Sampling,
    StepFeatures,
    Submit,
    UnloadAdapter,
)
from paceline_wire.limits import Limits

ASKED: dict[str, dict[str, Any]] = {
    "constrained": {"temperature": 1.0, "seed": 6},
    "greedy": {},
    "drawn": {"temperature": 0.7, "top_p": 0.9, "top_k": 50, "seed": 3},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.1},
    "biased": {"logit_bias": {5: 4.0, 9: -3.0}, "temperature": 1.0, "seed": 8},
    "told of": {"logprobs": 3, "prompt_logprobs": 2},
    "not to end yet": {"min_tokens": 5, "ignore_eos": False, "temperature": 2.0, "seed": 4},
}
LENGTHS = (5, 17, 40, 24, 9, 33, 12)
NEW_TOKENS = 8
few = settings(max_examples=6, deadline=None)
preemptions = st.dictionaries(st.integers(1, 14), st.integers(0, 3), max_size=6)


class AnyPrice(NoPacer):
    """Computing again costs a second a token: copies are always cheaper."""

    def predict_ms(self, step: StepFeatures) -> float:
        return 1.0 + 1e3 * step.tokens


class EveryThird:
    """A constraint of every third token, whose first mask waits at a gate: its row is late."""

    def __init__(self) -> None:
        self.gate = threading.Event()

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        """See `Constraint`."""
        assert self.gate.wait(timeout=300)
        bits = np.arange(bitmask.size * 32) % 3 == len(output_ids) % 3
        bitmask[:] = np.packbits(bits, bitorder="little").view(np.uint32)


@dataclass(frozen=True)
class Served:
    """A model on its device."""

    device: AsyncDevice
    loaded: LoadedModel

    def answers(
        self,
        schedule: Schedule,
        preempted: dict[int, int] | None = None,
        *,
        draft_tokens: int = 0,
        constrained: bool = True,
    ) -> dict[str, Any]:
        """What every request is answered; before step n the running one at a place is preempted."""
        loaded, draft = self.loaded, self.loaded.draft
        with self.device.visible(), self.device.following(schedule):
            proposer = None
            if draft_tokens and draft is not None:
                proposer = DraftModel(draft.runner, NoPacer(), loaded.capacity, ManualClock())
            engine = Engine(
                loaded.runner,
                loaded.info,
                loaded.capacity,
                NoPacer() if draft_tokens else AnyPrice(),
                limits=Limits(4, 32),
                clock=ManualClock(),
                options=EngineOptions(
                    prefix_caching=False,
                    overlap=not draft_tokens,
                    swapper=None if draft_tokens else loaded.swapper,
                    draft_tokens=draft_tokens,
                    proposer=proposer,
                ),
            )
            constraint = EveryThird()
            for number, (name, asked) in enumerate(ASKED.items()):
                if name == "constrained" and not constrained:
                    continue
                prompt = [(7 * number + 11 * at) % 290 + 3 for at in range(LENGTHS[number])]
                sampling = {"max_tokens": NEW_TOKENS, "temperature": 0.0, "ignore_eos": True}
                submit = Submit(name, prompt, Sampling(**{**sampling, **asked}))
                engine.submit(submit, constraint if name == "constrained" else None)
            found = _run(engine, constraint, preempted or {})
            assert ("constrained" in found) == constrained
            return found


def _run(engine: Engine, constraint: EveryThird, preempted: dict[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    step = 0
    while not engine.is_idle:
        if step in preempted:
            _keep(found, engine._steps.settle())  # as whatever moves blocks waits for it
            running = list(engine.requests.running())
            if len(running) > 1:
                engine.requests.preempt(running[preempted[step] % len(running)])
        _keep(found, engine.step())
        step += 1
        if step == 4:
            assert found, "others go on while its row sits out"
            assert "constrained" not in found
            constraint.gate.set()
        assert step < 500
    assert engine.load().swapped or not (preempted and engine.load().preemptions)
    return found


def _keep(found: dict[str, Any], outputs: Sequence[Output]) -> None:
    for output in outputs:
        assert output.error is None, output.error
        tokens, told = found.setdefault(output.id, ([], []))
        tokens += output.token_ids
        for each in (*output.prompt_logprobs, *output.logprobs):
            told.append((each.token_id, each.rank, each.top_ids, round(each.logprob, 3)))


def _settings(folder: Path, **asked: Any) -> Settings:
    return Settings.model_validate(
        {
            "model_uri": f"file://{folder}",
            "device": "cuda",
            "dtype": "float32",
            "threads": 1,
            "block_size": 8,
            "max_batch_size": 4,
            "max_token_budget": 32,
            "kv_cache_bytes": 1 << 20,
            "swap_bytes": 1 << 18,
            "prefill_attention": "triton",
            "graphs": "off",
            **asked,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16, num_hidden_layers=2)
    return folder


def _load(folder: Path, **asked: Any) -> Served:
    device = AsyncDevice()
    with device.visible():
        return Served(device, load_model(_settings(folder, **asked), lambda *_: None))


@pytest.fixture(scope="module")
def eager(folder: Path) -> Served:
    return _load(folder)


@pytest.fixture(scope="module")
def captured(folder: Path) -> Served:
    """Graphs of decodes and of mixed steps; captured while work is late."""
    served = _load(folder)
    with served.device.visible(), served.device.following(LATE):
        runner = served.loaded.runner
        runner.capture_decodes(CudaGraphCapture(runner.device), [1, 2, 4], lambda _done: None)
        runner.capture_mixed(CudaGraphCapture(runner.device), [16, 32], lambda _done: None)
    return served


@pytest.fixture(scope="module")
def drafting(folder: Path) -> Served:
    """The draft model is the model itself: what it drafts is mostly right."""
    return _load(folder, speculative="draft", draft_model_uri=f"file://{folder}", overlap="off")


def test_the_answers_at_once_are_those_of_a_cpu(folder: Path, eager: Served) -> None:
    """What every other test compares with is right: greedy tokens do not depend on the device."""
    on_cpu = load_model(
        _settings(folder, device="cpu", swap_bytes=0, prefill_attention="auto"), lambda *_: None
    )
    engine = Engine(
        on_cpu.runner,
        on_cpu.info,
        on_cpu.capacity,
        NoPacer(),
        limits=Limits(4, 32),
        clock=ManualClock(),
    )
    sampling = Sampling(NEW_TOKENS, temperature=0.0, ignore_eos=True)
    engine.submit(Submit("greedy", [(7 + 11 * at) % 290 + 3 for at in range(LENGTHS[1])], sampling))

    assert eager.answers(AT_ONCE)["greedy"] == _run(engine, EveryThird(), {})["greedy"]


@pytest.fixture(scope="module")
def wanted(eager: Served) -> dict[str, Any]:
    """The answers where everything runs at once, op by op."""
    return eager.answers(AT_ONCE)


@few
@given(any_schedule(), preemptions, st.booleans())
def test_whatever_runs_first_the_answers_are_the_same(
    eager: Served,
    wanted: dict[str, Any],
    schedule: Schedule,
    preempted: dict[int, int],
    constrained: bool,
) -> None:
    """Op by op; blocks go to the host and come back; without a grammar more steps overlap."""
    seen = eager.answers(schedule, preempted, constrained=constrained)

    assert seen == {name: wanted[name] for name in seen}


@few
@given(any_schedule(), preemptions, st.booleans())
def test_graphs_give_the_same(
    captured: Served,
    wanted: dict[str, Any],
    schedule: Schedule,
    preempted: dict[int, int],
    constrained: bool,
) -> None:
    """Steps of decodes have theirs, and all other steps."""
    captured.loaded.graph_use.restart()
    seen = captured.answers(schedule, preempted, constrained=constrained)

    assert seen == {name: wanted[name] for name in seen}
    assert captured.loaded.graph_use.decodes > 0
    assert captured.loaded.graph_use.mixed > 0


@few
@given(any_schedule(), preemptions)
def test_prompts_by_torch_give_the_same(
    eager: Served,
    wanted: dict[str, Any],
    schedule: Schedule,
    preempted: dict[int, int],
) -> None:
    """Whole ones and later chunks, whose contexts are gathered into memory that is soon reused."""
    attention = eager.loaded.runner._attention
    assert isinstance(attention, KernelAttention)
    by_torch = PrefillChoice({0: True}, {PromptChunk(1, 2): True})

    with mock.patch.object(attention, "prefill", by_torch):
        assert eager.answers(schedule, preempted) == wanted
    assert not by_torch.has_failed


def _load_ranks(folder: Path, *, graphs: bool) -> tuple[Served, TwoRanks]:
    """Two ranks, each with half of the heads, captured one after the other."""
    settings = _settings(folder, swap_bytes=0, tensor_parallel_size=2)
    device = AsyncDevice(num_gpus=2)
    with device.visible():
        ranks = TwoRanks(device)
        loaded = []
        for group, stream in zip(ranks.groups, ranks.streams, strict=True):
            with torch.cuda.stream(stream):
                one = load_checkpoint(
                    settings,
                    Located(folder.name, folder, revision=""),
                    open_checkpoint(folder),
                    group,
                    lambda *_: None,
                    share=read_share(),
                    dtype=DtypeChoice("float32", "as it was saved"),
                )
                runner = one.runner
                if graphs:
                    capture = CudaGraphCapture(runner.device)
                    runner.capture_decodes(capture, [1, 2, 4], lambda _done: None)
                    capture = CudaGraphCapture(runner.device)
                    runner.capture_mixed(capture, [16, 32], lambda _done: None)
                loaded.append(one)
        ranks.follower = loaded[1].runner
    return Served(device, loaded[0]), ranks


@pytest.fixture(scope="module")
def ranked(folder: Path) -> dict[bool, tuple[Served, TwoRanks]]:
    """Op by op, and in graphs."""
    return {graphs: _load_ranks(folder, graphs=graphs) for graphs in (False, True)}


@few
@given(any_schedule(), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_ranks_that_overlap_give_the_same(
    ranked: dict[bool, tuple[Served, TwoRanks]],
    wanted: dict[str, Any],
    schedule: Schedule,
    chosen: tuple[bool, bool, bool],
) -> None:
    """As one GPU that runs everything at once; sums and tokens are in the graphs, too.

    Rank 1's host may be as far behind as rank 0 goes ahead.
    """
    in_graphs, is_late, constrained = chosen
    served, ranks = ranked[in_graphs]
    ranks.is_late = is_late
    served.loaded.graph_use.restart()

    seen = served.answers(schedule, constrained=constrained)

    assert _tokens(seen) == {name: _tokens(wanted)[name] for name in seen}
    assert bool(served.loaded.graph_use.decodes) == in_graphs
    assert bool(served.loaded.graph_use.mixed) == in_graphs


def _tokens(answers: dict[str, Any]) -> dict[str, list[int]]:
    """Leave logprobs out: halves that are added up round otherwise."""
    return {name: tokens for name, (tokens, _) in answers.items()}


def test_ranks_that_do_not_share_tokens_are_seen(
    ranked: dict[bool, tuple[Served, TwoRanks]], wanted: dict[str, Any]
) -> None:
    """So the test above would see it: rank 1 would go on with another token."""
    served, ranks = ranked[False]

    with mock.patch.object(type(ranks.groups[0]), "share_"):
        assert _tokens(served.answers(AT_ONCE)) != _tokens(wanted)


@few
@given(any_schedule())
def test_drafts_give_the_same(drafting: Served, schedule: Schedule) -> None:
    """Of a second model, whose steps come between the model's."""
    assert drafting.answers(schedule, draft_tokens=3) == drafting.answers(AT_ONCE, draft_tokens=3)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Path]:
    """Two slots, and three adapters in a folder; decodes are in graphs."""
    folder = tmp_path_factory.mktemp("adapted")
    model = make_tiny_model(folder / "model", "llama", head_dim=16, num_hidden_layers=2)
    for seed, name in enumerate("abc"):
        make_tiny_adapter(folder / name, model, seed=seed)
    served = _load(folder / "model", max_loras=2, max_lora_rank=4)
    with served.device.visible():
        runner = served.loaded.runner
        runner.capture_decodes(CudaGraphCapture(runner.device), [1, 2, 4], lambda _done: None)
    return served, folder


def _adapted_answers(served: Served, folder: Path, schedule: Schedule) -> dict[str, list[int]]:
    """Adapters come and go while steps are on their way; a slot is filled as soon as it is free."""
    loaded = served.loaded
    found: dict[str, list[int]] = {}
    with served.device.visible(), served.device.following(schedule):
        engine = Engine(
            loaded.runner,
            loaded.info,
            loaded.capacity,
            NoPacer(),
            limits=Limits(4, 32),
            clock=ManualClock(),
            options=EngineOptions(overlap=True, adapters=loaded.adapters),
        )
        loads, step = list("abcab"), 0
        while loads or not engine.is_idle:
            if loads:
                name = loads[0]
                folder_of = str(folder / name)
                if engine.change_adapters(LoadAdapter(1, name, folder_of)).error is None:
                    id_ = f"{len(loads)} of {name}"
                    prompt = [(7 * len(loads) + 11 * at) % 290 + 3 for at in range(9)]
                    sampling = Sampling(4, temperature=0.0, ignore_eos=True)
                    engine.submit(Submit(id_, prompt, sampling, adapter=loads.pop(0)))
                    engine.submit(Submit(f"none beside {id_}", prompt, sampling))
                    engine.change_adapters(UnloadAdapter(1, name))
            for output in engine.step():
                assert output.error is None, output.error
                found.setdefault(output.id, []).extend(output.token_ids)
            step += 1
            assert step < 200
    return found


@few
@given(any_schedule())
def test_adapters_give_the_same(adapted: tuple[Served, Path], schedule: Schedule) -> None:
    """Each answers as if it were the only one, whatever is loaded meanwhile."""
    seen, wanted = (_adapted_answers(*adapted, each) for each in (schedule, AT_ONCE))

    assert seen == wanted
    assert len({tuple(tokens) for tokens in wanted.values()}) > 6
    assert adapted[0].loaded.graph_use.decodes > 0


@pytest.mark.parametrize(
    "piece", ["self._stream.wait_event(is_sampled)", "self.done.synchronize()"]
)
def test_a_fault_in_fetching_reaches_the_answers(eager: Served, piece: str) -> None:
    """So the tests above would see it."""
    runner = eager.loaded.runner
    wanted = eager.answers(AT_ONCE)
    with eager.device.visible():
        faulty = mutated(TokenCopies, piece)(runner.device, 4)

    with mock.patch.object(runner, "_copies", faulty):
        seen = []
        for schedule in (LATE, Schedule(0.3, 1), Schedule(0.3, 2)):
            try:
                seen.append(eager.answers(schedule))
            except (AssertionError, ValueError, IndexError) as error:
                seen.append({"error": error})

    assert any(each != wanted for each in seen)
