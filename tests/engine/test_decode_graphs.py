"""Decodes are replayed from CUDA graphs that are captured at start, with the same answers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.constraint import TokenBitmask
from paceline_engine.core.graph_sizes import decode_sizes
from paceline_engine.core.request import Request
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.graph_capture import CudaGraphCapture
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.sampling.masks import MaskMaker
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.tape_capture import TapeCapture
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import Sampling, SetLimits, Submit
from paceline_wire.limits import Capacity, Limits

CAPACITY = a_capacity(max_batch_size=8, max_token_budget=48, num_blocks=60, max_model_len=64)
"""Recorded are 1, 2, 3, 4, 6 and 8: five rows and seven are padded."""
SAMPLINGS = (
    Sampling(12, temperature=0.0, ignore_eos=True),
    Sampling(9, temperature=0.0, ignore_eos=True),
    Sampling(12, temperature=0.8, seed=3, ignore_eos=True),
    Sampling(7, temperature=1.0, seed=5, top_p=0.9, ignore_eos=True),
    Sampling(8, temperature=0.0, ignore_eos=True, frequency_penalty=0.5, logprobs=1),
    Sampling(10, temperature=1.3, ignore_eos=True),
    Sampling(11, temperature=1.0, ignore_eos=True, top_k=7, min_p=0.02),
    Sampling(8, temperature=0.9, ignore_eos=True, repetition_penalty=1.4, logit_bias={7: 3.0}),
    Sampling(9, temperature=1.1, seed=8, min_tokens=6, logprobs=2),
    Sampling(8, temperature=1.0, ignore_eos=True),
)
CONSTRAINED = len(SAMPLINGS) - 1
DRAWN = (2, 3, 5, 6)
"""Those that ask for nothing but a draw."""
ASKING = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama")
    return folder


@pytest.fixture(scope="module")
def asking(folder: Path) -> ModelRunner:
    """Its sampler is told by each request anew what to draw by."""
    return kernel_runner(folder, CAPACITY, graphs=False, asks=True)


@pytest.fixture(scope="module")
def eager(folder: Path) -> ModelRunner:
    return kernel_runner(folder, CAPACITY, graphs=False)


@pytest.fixture(scope="module")
def graphed(folder: Path) -> ModelRunner:
    return kernel_runner(folder, CAPACITY, graphs=True)


def an_engine(runner: ModelRunner, capacity: Capacity = CAPACITY, *, overlap: bool) -> Engine:
    return Engine(
        runner,
        a_model_info(vocab_size=300),
        capacity,
        NoPacer(),
        limits=Limits(capacity.max_batch_size, capacity.max_token_budget),
        clock=ManualClock(),
        options=EngineOptions(prefix_caching=False, graph_use=runner.graph_use, overlap=overlap),
    )


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, and the limits that are set as it comes."""

    length: int
    sampling: int
    steps_before: int
    max_batch_size: int = 8
    token_budget: int = 48
    leaves: bool = False
    takes_from: int | None = None
    """As it comes, one of those that run loses its row and its blocks; else none."""


ARRIVALS = st.builds(
    Arrival,
    length=st.integers(1, 30),
    sampling=st.integers(0, len(SAMPLINGS) - 1),
    steps_before=st.integers(0, 5),
    max_batch_size=st.integers(1, CAPACITY.max_batch_size),
    token_budget=st.integers(1, CAPACITY.max_token_budget),
    leaves=st.booleans(),
    takes_from=st.none() | st.integers(0, 7),
)


class EveryThird:
    """A constraint: of its tokens only one in three may follow, others at every place."""

    def fill_bitmask(self, output_ids: Sequence[int], bitmask: TokenBitmask) -> None:
        for token in range(len(output_ids) % 3, 300, 3):
            bitmask[token // 32] |= 1 << (token % 32)


def answers(
    engine: Engine,
    arrivals: list[Arrival],
    before_steps: Mapping[int, Callable[[], None]] = MappingProxyType({}),
) -> dict[str, list[int]]:
    """What each request that stays is answered; what is done before some of the steps."""
    tokens: dict[str, list[int]] = {}
    steps = count()

    def step() -> None:
        before_steps.get(next(steps), lambda: None)()
        for output in engine.step():
            assert output.error is None, output.error
            tokens.setdefault(output.id, []).extend(output.token_ids)

    for number, arrival in enumerate(arrivals):
        prompt = [(5 + 7 * place + number) % 300 for place in range(arrival.length)]
        constraint = EveryThird() if arrival.sampling == CONSTRAINED else None
        engine.submit(Submit(str(number), prompt, SAMPLINGS[arrival.sampling]), constraint)
        epoch, rows, budget = number + 1, arrival.max_batch_size, arrival.token_budget
        engine.set_limits(SetLimits(call=1, epoch=epoch, max_batch_size=rows, token_budget=budget))
        for _ in range(arrival.steps_before):
            step()
        if arrival.leaves:
            engine.abort([str(number)])
        if arrival.takes_from is not None:
            preempt(engine, arrival.takes_from)
    while not engine.is_idle:
        step()
    return {
        str(number): tokens.get(str(number), [])
        for number, arrival in enumerate(arrivals)
        if not arrival.leaves
    }


def preempt(engine: Engine, number: int) -> None:
    """Take its row from one of those that run, whichever that is."""
    engine.settle()  # nobody is preempted while a step of theirs is on its way
    if running := list(engine.requests.running()):
        engine.requests.preempt(running[number % len(running)])


@settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(arrivals=st.lists(ARRIVALS, min_size=1, max_size=11), overlap=st.booleans())
def test_replayed_steps_change_no_token(
    asking: ModelRunner,
    eager: ModelRunner,
    graphed: ModelRunner,
    arrivals: list[Arrival],
    overlap: bool,
) -> None:
    """Whoever comes, leaves, loses its row and gets another's, greedy, drawn, or asking for more.

    A draw by what lies at the rows, op by op or replayed, is the one that the request asks for.
    """
    wanted = answers(an_engine(asking, overlap=False), arrivals)

    assert answers(an_engine(eager, overlap=overlap), arrivals) == wanted
    assert answers(an_engine(graphed, overlap=overlap), arrivals) == wanted


def test_codes_that_are_handed_over_are_replayed(folder: Path) -> None:
    """They and their scales lie between two ops of a captured step, as rows do."""
    arrivals = [
        Arrival(length, sampling=0, steps_before=1, max_batch_size=8, token_budget=48)
        for length in (3, 5, 9)
    ]
    op_by_op, replayed = (
        kernel_runner(folder, CAPACITY, graphs=graphs, quantization="fp8_dynamic")
        for graphs in (False, True)
    )
    wanted = answers(an_engine(op_by_op, overlap=False), arrivals)

    assert answers(an_engine(replayed, overlap=True), arrivals) == wanted
    assert replayed.graph_use.decodes > 0


def test_tokens_outlive_the_replay_behind_them(eager: ModelRunner, graphed: ModelRunner) -> None:
    """With overlap the host fetches a step's tokens when the next has been replayed."""
    arrivals = [
        Arrival(length, sampling=0, steps_before=0, max_batch_size=8, token_budget=48)
        for length in (3, 5, 9)
    ]
    wanted = answers(an_engine(eager, overlap=False), arrivals)

    assert answers(an_engine(graphed, overlap=True), arrivals) == wanted


@pytest.mark.parametrize("overlap", [False, True])
def test_whoever_loses_a_row_draws_on_as_if_it_had_not(
    asking: ModelRunner, graphed: ModelRunner, overlap: bool
) -> None:
    """Each comes back to a row where another's draws lie, and the next time to its first."""
    arrivals = [Arrival(3 + number, one, steps_before=1) for number, one in enumerate(DRAWN)]
    wanted = answers(an_engine(asking, overlap=False), arrivals)
    engine = an_engine(graphed, overlap=overlap)
    rows: list[list[int | None]] = []

    def lose_all() -> None:
        engine.settle()
        running = sorted(engine.requests.running(), key=lambda request: request.number)
        rows.append([request.row for request in running])
        for request in running:
            engine.requests.preempt(request)
        free = engine.requests._free_rows
        free[-len(running) :] = free[-len(running) :][::-1]  # else each would get its own again

    assert answers(engine, arrivals, before_steps={4: lose_all, 7: lose_all}) == wanted
    assert len(rows[0]) == len(DRAWN)
    assert rows[0] == rows[1][::-1]


def test_a_drawn_step_needs_nothing_of_the_host(
    graphed: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs behind the graph, or looks at requests, runs where one asks for more."""
    looked = []
    begin = MaskMaker.begin

    def behind(*args: Any, **kwargs: Any) -> Any:
        looked.append("sampler")
        return resample(*args, **kwargs)

    def begun(*args: Any, **kwargs: Any) -> Any:
        looked.append("masks")
        return begin(*args, **kwargs)

    resample = DeviceSampler.resample
    monkeypatch.setattr(DeviceSampler, "resample", behind)
    monkeypatch.setattr(MaskMaker, "begin", begun)
    arrivals = [Arrival(3, sampling, steps_before=2) for sampling in DRAWN]
    replayed = graphed.graph_use.decodes

    answers(an_engine(graphed, overlap=True), arrivals)

    assert graphed.graph_use.decodes > replayed
    assert not looked
    answers(an_engine(graphed, overlap=True), [Arrival(3, ASKING, steps_before=0)])
    assert {*looked} == {"sampler", "masks"}


def test_drafts_are_drawn_by_what_lies_at_the_row(eager: ModelRunner, asking: ModelRunner) -> None:
    """Several places of one row, each with a draw of its own, beside a row without a draft."""
    prompts = [[5, 8, 13, 21], [3, 6]]
    seen = []
    for runner in (eager, asking):
        requests = [
            Request(
                str(number),
                [*prompt],
                len(prompt),
                SAMPLINGS[DRAWN[number]],
                row=number + 2,
                block_ids=[2 * number, 2 * number + 1],
            )
            for number, prompt in enumerate(prompts)
        ]
        prefills = [
            ScheduledChunk(one, 0, len(one.token_ids), samples=True, is_decode=False)
            for one in requests
        ]
        first = runner.launch(Batch(tuple(prefills), num_decodes=0)).result().tokens
        for request, token in zip(requests, first, strict=True):
            assert isinstance(token, int)
            request.token_ids.append(token)
        drafted, plain = requests
        draft = (7, 9, 11)
        batch = Batch(
            (
                ScheduledChunk(plain, 2, 1, samples=True, is_decode=True),
                ScheduledChunk(drafted, 4, 4, samples=True, is_decode=True, draft=draft),
            ),
            num_decodes=1,
            num_drafted=1,
        )
        inputs = runner.prepare(batch)
        seen.append((first, runner.compute(batch, inputs).sampled.token_ids.tolist()))

    assert len(seen[0][1]) == 5
    assert seen[0] == seen[1]


def test_every_size_is_captured_and_the_capacity_is_one(folder: Path) -> None:
    """The largest first: no batch that any limit allows is without a graph."""
    runner = kernel_runner(folder, CAPACITY, graphs=False)
    capture = TapeCapture()
    done: list[float] = []

    runner.capture_decodes(capture, decode_sizes(CAPACITY.max_batch_size), done.append)

    assert capture.num_captured == len(decode_sizes(CAPACITY.max_batch_size)) == 6
    assert done == [number / 6 for number in range(6)]
    engine = an_engine(runner, overlap=False)
    for number in range(CAPACITY.max_batch_size):
        engine.submit(Submit(str(number), [number], SAMPLINGS[0]))
    while not engine.is_idle:
        engine.step()
    assert capture.num_captured == 6
    assert runner.graph_use.decodes == SAMPLINGS[0].max_tokens - 1
    assert dict(runner.graph_use.eager) == {"prefill": 1}
    told = engine.load()
    assert told.graph_steps == runner.graph_use.decodes
    assert told.graph_fallbacks == {"prefill": 1}


def test_padding_leaves_no_trace(folder: Path) -> None:
    """Five rows run as six: no key is stored and no token is kept but theirs."""
    capacity = a_capacity(max_batch_size=6, num_blocks=20, max_model_len=32)
    runner = kernel_runner(folder, capacity, graphs=True)
    engine = an_engine(runner, capacity, overlap=False)
    for number in range(5):
        engine.submit(Submit(str(number), [7, 8, 9, number], SAMPLINGS[0]))
    while len(engine.requests.decoding) < 5:
        engine.step()
    attention, tables = runner._attention, runner._tables
    assert isinstance(attention, KernelAttention)
    assert isinstance(tables, DeviceTables)
    kv, latest = [each.clone() for each in attention.kv.all], tables._latest.clone()
    running = list(engine.requests.running())

    engine.step()

    held = {block for request in running for block in request.block_ids}
    others = [block for block in range(capacity.num_blocks) if block not in held]
    assert others
    for was, now in zip(kv, attention.kv.all, strict=True):
        assert torch.equal(was[others], now[others])
        assert not torch.equal(was, now)
    (spare,) = {*range(6)} - {request.row for request in running}
    assert tables._latest[spare] == latest[spare]
    assert [tables._latest[one.row] for one in running] == [one.token_ids[-1] for one in running]


class Numbers:
    """What a graph may read, and what it may not."""

    def __init__(self) -> None:
        self.given, self.result = torch.zeros(3), torch.zeros(3)


def test_a_tape_computes_on_what_is_there_by_then() -> None:
    """The double itself."""
    numbers = Numbers()
    replay = TapeCapture().capture(lambda: numbers.result.copy_(numbers.given * 2 + 1))  # type: ignore[arg-type]
    numbers.given.fill_(5)

    replay()

    assert numbers.result.tolist() == [11.0] * 3


def test_a_tape_tells_of_memory_that_would_be_gone() -> None:
    """A step's own array, copied anew for each: a graph would read whatever lies there later."""
    numbers = Numbers()

    def compute() -> None:
        fresh = torch.frombuffer(bytearray(12), dtype=torch.float32)
        numbers.result.copy_(numbers.given + fresh)

    with pytest.raises(AssertionError, match="made for this capture alone"):
        TapeCapture().capture(compute)


def test_a_tape_tells_of_a_wait() -> None:
    """What the host decides by a number of the device is decided once, at the capture."""
    numbers = Numbers()

    with pytest.raises(AssertionError, match="waits for the device"):
        TapeCapture().capture(lambda: numbers.result.fill_(numbers.given.sum().item()))  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_cuda_captures_and_replays() -> None:
    """Two graphs in one pool, on tensors that were filled after."""
    device = torch.device("cuda")
    given, result = (torch.zeros(4, device=device) for _ in range(2))
    cuda = CudaGraphCapture(device)
    replays = [
        cuda.capture(lambda size=size: result[:size].copy_(given[:size] * 2 + 1))  # type: ignore[misc,arg-type]
        for size in (4, 2)
    ]
    given.fill_(5)

    replays[1]()
    assert result.tolist() == [11.0, 11.0, 1.0, 1.0]
    replays[0]()
    assert result.tolist() == [11.0] * 4
