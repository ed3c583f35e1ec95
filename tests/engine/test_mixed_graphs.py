"""Steps with prompts or drafts are replayed from graphs, with the same answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.graph_sizes import decode_sizes
from paceline_engine.core.request import Request
from paceline_engine.drafting.proposer import Ask, Proposal
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.graph_capture import CudaGraphCapture, GraphCapture
from paceline_engine.runner.mixed_graphs import MixedGraphs
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.settings import Quantization
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.tape_capture import TapeCapture
from paceline_testing.tiny_model import Family, make_tiny_model
from paceline_wire import Sampling, SetLimits, Submit
from paceline_wire.limits import Limits

CAPACITY = a_capacity(max_batch_size=4, max_token_budget=40, num_blocks=60, max_model_len=64)
SIZES = (4, 16)
"""A step of 17 tokens or more is computed op by op."""
SAMPLINGS = (
    Sampling(10, temperature=0.0, ignore_eos=True),
    Sampling(8, temperature=0.8, seed=3, ignore_eos=True),
    Sampling(6, temperature=0.0, ignore_eos=True, prompt_logprobs=1),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    return folder


@pytest.fixture(scope="module")
def eager(folder: Path) -> ModelRunner:
    return kernel_runner(folder, CAPACITY, graphs=False)


@pytest.fixture(scope="module")
def replayed(folder: Path) -> ModelRunner:
    runner = kernel_runner(folder, CAPACITY, graphs=True)
    # As if each had been faster.
    runner.capture_mixed(TapeCapture(), SIZES, lambda _fraction: None)
    return runner


def quickly_captured(folder: Path, capture: RecomputeCapture | None = None) -> ModelRunner:
    """For tests of what is computed how, and not of what comes of it."""
    capture = capture or RecomputeCapture()
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    runner.capture_decodes(capture, decode_sizes(CAPACITY.max_batch_size), lambda _fraction: None)
    runner.capture_mixed(capture, SIZES, lambda _fraction: None)
    return runner


@dataclass(frozen=True, slots=True)
class Oracle:
    """Drafts what was answered without drafts, and slips at every fourth place."""

    answered: Mapping[str, list[int]]
    first_chance: float = 1.0
    takes_time: bool = False

    def reach(self, request: Request, most: int) -> int:
        return most if request.id in self.answered else 0

    def pending(self, request: Request) -> int:  # noqa: ARG002 - the port's
        return 0

    def ms(self, asks: Sequence[Ask]) -> float:  # noqa: ARG002 - the port's
        return 0.0

    def ms_of_one(self, rows: int, context: int) -> float:  # noqa: ARG002 - the port's
        return 0.0

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        drafts = {ask.request.id: self._guess(ask) for ask in asks}
        return Proposal({id_: draft for id_, draft in drafts.items() if draft})

    def forget(self, request: Request) -> None:
        pass

    def _guess(self, ask: Ask) -> tuple[int, ...]:
        first = ask.request.num_output_tokens
        known = self.answered[ask.request.id][first : first + ask.count]
        slips = ((first + place) % 4 == 3 for place in range(len(known)))
        return tuple((token + slip) % 300 for token, slip in zip(known, slips, strict=True))


def an_engine(
    runner: ModelRunner, *, overlap: bool = False, guesser: Oracle | None = None
) -> Engine:
    runner.graph_use.restart()
    return Engine(
        runner,
        a_model_info(vocab_size=300),
        CAPACITY,
        NoPacer(),
        limits=Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget),
        clock=ManualClock(),
        options=EngineOptions(
            graph_use=runner.graph_use,
            overlap=overlap,
            draft_tokens=3 if guesser is not None else 0,
            proposer=guesser,
        ),
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, and the limits that are set as it comes."""

    length: int
    sampling: int = 0
    steps_before: int = 0
    """Steps until the next one comes."""
    max_batch_size: int = CAPACITY.max_batch_size
    token_budget: int = CAPACITY.max_token_budget
    starts_alike: bool = False
    """Its prompt begins as others' do, so it may find blocks in the prefix cache."""
    leaves: bool = False


ARRIVALS = st.builds(
    Arrival,
    length=st.integers(1, 45),
    sampling=st.integers(0, len(SAMPLINGS) - 1),
    steps_before=st.integers(0, 4),
    max_batch_size=st.integers(1, CAPACITY.max_batch_size),
    token_budget=st.integers(1, CAPACITY.max_token_budget),
    starts_alike=st.booleans(),
    leaves=st.booleans(),
)


def answers(engine: Engine, arrivals: Sequence[Arrival]) -> dict[str, list[int]]:
    """What each request that stays is answered."""
    tokens: dict[str, list[int]] = {}

    def step() -> None:
        for output in engine.step():
            assert output.error is None, output.error
            tokens.setdefault(output.id, []).extend(output.token_ids)

    for number, arrival in enumerate(arrivals):
        kind = 0 if arrival.starts_alike else number + 1
        prompt = [(5 + 7 * place + 11 * kind) % 300 for place in range(arrival.length)]
        engine.submit(Submit(str(number), prompt, SAMPLINGS[arrival.sampling]))
        epoch, rows, budget = number + 1, arrival.max_batch_size, arrival.token_budget
        engine.set_limits(SetLimits(call=1, epoch=epoch, max_batch_size=rows, token_budget=budget))
        for _ in range(arrival.steps_before):
            step()
        if arrival.leaves:
            engine.abort([str(number)])
    while not engine.is_idle:
        step()
    return {
        str(number): tokens.get(str(number), [])
        for number, arrival in enumerate(arrivals)
        if not arrival.leaves
    }


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    arrivals=st.lists(ARRIVALS, min_size=1, max_size=9),
    way=st.sampled_from(["alone", "overlap", "drafts"]),
)
def test_graphs_change_no_token(
    eager: ModelRunner, replayed: ModelRunner, arrivals: list[Arrival], way: str
) -> None:
    """Chunks, prefix hits, drafts that hold or not, whoever comes and leaves, at any limits."""
    wanted = answers(an_engine(eager), arrivals)
    guesser = Oracle(wanted) if way == "drafts" else None

    found = answers(an_engine(replayed, overlap=way == "overlap", guesser=guesser), arrivals)

    assert found == wanted


def test_steps_with_drafts_are_replayed(eager: ModelRunner, replayed: ModelRunner) -> None:
    """Every token of a draft is one of the step's, as a prompt's are."""
    arrivals = [Arrival(5), Arrival(7)]
    wanted = answers(an_engine(eager), arrivals)
    engine = an_engine(replayed, guesser=Oracle(wanted))

    assert answers(engine, arrivals) == wanted
    load = engine.load()
    assert load.accepted_tokens > 0
    assert load.graph_mixed_steps > 2  # more than those with the prompts
    assert load.graph_fallbacks == {}


@pytest.mark.parametrize(
    ("length", "is_replayed"),
    [(1, True), (4, True), (5, True), (16, True), (17, False), (40, False)],
    ids=str,
)
def test_a_step_is_padded_to_the_next_size_up_to_the_last(
    eager: ModelRunner, replayed: ModelRunner, length: int, is_replayed: bool
) -> None:
    """One token less than a size, one more, and more than the largest."""
    wanted = answers(an_engine(eager), [Arrival(length)])
    engine = an_engine(replayed)

    assert answers(engine, [Arrival(length)]) == wanted
    load = engine.load()
    assert load.graph_mixed_steps == is_replayed
    assert load.graph_fallbacks == ({} if is_replayed else {"prefill": 1})
    assert load.graph_steps == SAMPLINGS[0].max_tokens - 1


def test_nothing_is_captured_while_serving(folder: Path) -> None:
    """A graph for each size, all before the first request."""
    runner, capture = quickly_captured(folder), RecomputeCapture()
    done: list[float] = []

    runner.capture_mixed(capture, SIZES, done.append)

    assert capture.num_captured == len(SIZES)
    assert done == [0, 1 / 2]
    answers(an_engine(runner), [Arrival(length) for length in (3, 15, 30)])
    assert capture.num_captured == len(SIZES)


def test_only_sizes_that_are_kept_are_replayed(folder: Path) -> None:
    """A step of a size that was given up runs op by op, though a larger graph exists."""
    runner = quickly_captured(folder)

    runner.keep_mixed([16])

    engine = an_engine(runner)
    answers(engine, [Arrival(length, steps_before=1) for length in (3, 7, 20)])
    load = engine.load()
    assert (load.graph_mixed_steps, load.graph_fallbacks) == (1, {"prefill": 2})


def test_without_a_size_that_is_worth_it_nothing_is_kept(folder: Path) -> None:
    """Neither graphs nor their tensors."""
    runner = quickly_captured(folder)

    runner.keep_mixed([])

    assert runner._mixed is None
    engine = an_engine(runner)
    answers(engine, [Arrival(3)])
    assert engine.load().graph_fallbacks == {"prefill": 1}


def test_mixed_graphs_need_decode_graphs(folder: Path) -> None:
    """Who captures nothing else has said why: a CPU, or ranks that share the layers."""
    with pytest.raises(TypeError, match="mixed graphs need decode graphs beside them"):
        kernel_runner(folder, CAPACITY, graphs=False).capture_mixed(
            RecomputeCapture(), SIZES, print
        )


@dataclass(frozen=True, slots=True)
class LayerResult:
    """What the layers of a step left."""

    hidden: Tensor  # [kept, hidden]
    kv: tuple[Tensor, ...]


@torch.inference_mode()
def computed(
    runner: ModelRunner, batch: Batch, graphs: MixedGraphs | None, *, every_state: bool = True
) -> LayerResult:
    """Run a step's layers, over an empty cache."""
    cache = kernels_of(runner).kv.all
    for tensor in cache:
        tensor.zero_()
    inputs = replace(runner.prepare(batch), keeps_every_state=every_state)
    with mock.patch.object(runner, "_mixed", graphs):
        hidden = runner._hidden(inputs, "eager" if graphs is None else "mixed graph")
    return LayerResult(hidden, tuple(each.clone() for each in cache))


def kernels_of(runner: ModelRunner) -> KernelAttention:
    assert isinstance(runner._attention, KernelAttention)
    return runner._attention


def captured(runner: ModelRunner, *sizes: int, capture: GraphCapture | None = None) -> MixedGraphs:
    """Mixed graphs of a runner that has no other graphs."""
    capture = capture or TapeCapture()
    tables = runner._tables
    assert isinstance(tables, DeviceTables)
    graphs = MixedGraphs(
        sizes,
        runner._decoder,
        kernels_of(runner),
        num_rows=tables.num_rows,
        num_columns=tables.num_columns,
    )
    graphs.capture(capture, lambda _fraction: None)
    return graphs


def a_step(num_prompt: int) -> Batch:
    """A decode, the second chunk of a prompt, and a short prompt: rows 0 to 2, blocks from 1."""

    def request(row: int, length: int) -> Request:
        tokens = [(3 + 7 * place + row) % 300 for place in range(length)]
        blocks = list(range(1 + 10 * row, 11 + 10 * row))
        return Request(f"{row}", tokens, length, Sampling(4), row=row, block_ids=blocks)

    return Batch(
        (
            ScheduledChunk(request(0, 9), 8, 1, samples=True, is_decode=True),
            ScheduledChunk(
                request(1, 4 + num_prompt), 4, num_prompt, samples=False, is_decode=False
            ),
            ScheduledChunk(request(2, 2), 0, 2, samples=True, is_decode=False),
        ),
        num_decodes=1,
    )


@pytest.mark.parametrize(
    ("family", "quantization"),
    [
        ("qwen2", "none"),
        ("qwen3", "none"),
        ("gemma2", "none"),
        ("llama", "fp8_dynamic"),
        ("llama", "int8"),
    ],
)
def test_what_lies_behind_a_steps_tokens_does_not_matter(
    tmp_path: Path, family: Family, quantization: Quantization
) -> None:
    """States, keys and values are as op by op, with more tokens and rows in the graph."""
    more = {"sliding_window": 6, "head_dim": 16} if family == "gemma2" else {}
    make_tiny_model(tmp_path, family, **more)
    runner = kernel_runner(tmp_path, CAPACITY, graphs=False, quantization=quantization)
    graphs, step = captured(runner, 16), a_step(9)
    for every_state, num_kept in ((True, 12), (False, 2)):
        wanted = computed(runner, step, None, every_state=every_state)
        computed(runner, a_step(13), graphs)  # fills the size: its numbers lie there from then on
        graphs._hidden.fill_(torch.nan)

        found = computed(runner, step, graphs, every_state=every_state)

        assert wanted.hidden.shape[0] == num_kept
        torch.testing.assert_close(found.hidden, wanted.hidden, rtol=1e-4, atol=1e-4)
        for before, after in zip(wanted.kv, found.kv, strict=True):
            torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-4)


def test_a_replay_reads_this_steps_tokens(eager: ModelRunner) -> None:
    """A short step behind a long one: nothing of the long one is left in what it gives."""
    graphs = captured(eager, 32)
    wanted = computed(eager, a_step(3), None).hidden
    long = computed(eager, a_step(25), graphs).hidden

    found = computed(eager, a_step(3), graphs).hidden

    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(found, long[: len(found)], rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_cuda_replays_every_size(tmp_path: Path) -> None:
    """States, keys and values as op by op: captured in one pool, replayed in any order."""
    device = torch.device("cuda")
    make_tiny_model(tmp_path, "qwen3", head_dim=32)
    runner = kernel_runner(tmp_path, CAPACITY, graphs=False, device=device)
    graphs = captured(runner, 8, 16, 32, capture=CudaGraphCapture(device))
    for num_prompt in (9, 25, 3, 13):
        step = a_step(num_prompt)
        wanted = computed(runner, step, None)
        graphs._hidden.fill_(torch.nan)

        found = computed(runner, step, graphs)

        torch.testing.assert_close(found.hidden, wanted.hidden, rtol=1e-2, atol=1e-2)
        for before, after in zip(wanted.kv, found.kv, strict=True):
            torch.testing.assert_close(after, before, rtol=1e-2, atol=1e-2)
