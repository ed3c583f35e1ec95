"""Steps with adapters are replayed from CUDA graphs as any others, with the same answers."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_engine.core.graph_sizes import decode_sizes
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.graph_capture import GraphCapture
from paceline_engine.runner.model_runner import ModelRunner
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity, a_model_info
from paceline_testing.kernel_runner import kernel_runner
from paceline_testing.recompute_capture import RecomputeCapture
from paceline_testing.tape_capture import TapeCapture
from paceline_testing.tiny_adapter import make_tiny_adapter
from paceline_testing.tiny_model import make_tiny_model
from paceline_wire import LoadAdapter, Sampling, Submit
from paceline_wire.limits import Limits

CAPACITY = a_capacity(max_batch_size=4, max_token_budget=40, num_blocks=60, max_model_len=64)
SIZES = (4, 16)
"""A step of 17 tokens or more is computed op by op."""
SLOTS, RANK = 3, 8
ADAPTERS = {"a": 1, "b": 2, "c": 3}


@dataclass(frozen=True)
class Served:
    """A model and its adapters, with graphs or without."""

    runner: ModelRunner
    adapters: LoraAdapters
    folder: Path

    def engine(self) -> Engine:
        """Nothing runs in it, and it has every adapter."""
        engine = Engine(
            self.runner,
            a_model_info(vocab_size=300),
            CAPACITY,
            NoPacer(),
            limits=Limits(CAPACITY.max_batch_size, CAPACITY.max_token_budget),
            clock=ManualClock(),
            options=EngineOptions(
                prefix_caching=False, adapters=self.adapters, graph_use=self.runner.graph_use
            ),
        )
        for name in ADAPTERS:
            self.load(engine, name, name)
        return engine

    def load(self, engine: Engine, name: str, folder: str) -> None:
        """Put the adapter of a folder in the place of what had the name."""
        change = LoadAdapter(1, name, str(self.folder / folder), replaces=True)
        assert engine.change_adapters(change).error is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model, and an adapter for each name."""
    folder = tmp_path_factory.mktemp("tiny")
    model = make_tiny_model(folder / "model", "qwen2")
    for name, seed in ADAPTERS.items():
        make_tiny_adapter(folder / name, model, seed=seed, rank=2 * seed)
    return folder


def served(folder: Path, capture: type[GraphCapture] | None) -> Served:
    adapters = LoraAdapters(SLOTS, RANK)
    runner = kernel_runner(folder / "model", CAPACITY, graphs=False, adapters=adapters)
    if capture is not None:
        sizes = decode_sizes(CAPACITY.max_batch_size)
        runner.capture_decodes(capture(), sizes, lambda _fraction: None)
        runner.capture_mixed(capture(), SIZES, lambda _fraction: None)
    return Served(runner, adapters, folder)


@pytest.fixture(scope="module")
def eager(folder: Path) -> Served:
    return served(folder, None)


@pytest.fixture(scope="module")
def graphed(folder: Path) -> Served:
    return served(folder, TapeCapture)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, and how many steps run before it comes."""

    adapter: str
    length: int
    max_tokens: int = 5
    steps_before: int = 0
    prompt_logprobs: int | None = None


ARRIVALS = st.builds(
    Arrival,
    adapter=st.sampled_from(("", "a", "b", "c")),
    length=st.integers(1, 30),
    max_tokens=st.integers(1, 8),
    steps_before=st.integers(0, 4),
    prompt_logprobs=st.sampled_from((None, None, 1)),
)


def answers(engine: Engine, arrivals: list[Arrival]) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}

    def step() -> None:
        for output in engine.step():
            assert output.error is None, output.error
            tokens.setdefault(output.id, []).extend(output.token_ids)

    for number, each in enumerate(arrivals):
        for _ in range(each.steps_before):
            step()
        prompt = [(5 + 7 * place + number) % 300 for place in range(each.length)]
        sampling = Sampling(
            each.max_tokens,
            temperature=0.0,
            ignore_eos=True,
            prompt_logprobs=each.prompt_logprobs,
        )
        engine.submit(Submit(str(number), prompt, sampling, adapter=each.adapter))
    while not engine.is_idle:
        step()
    return tokens


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ARRIVALS, min_size=1, max_size=6))
def test_replayed_steps_give_the_same_tokens(
    eager: Served, graphed: Served, arrivals: list[Arrival]
) -> None:
    """Adapters of several ranks and none, in padded batches, beside prompts of all sizes."""
    wanted = answers(eager.engine(), arrivals)

    assert answers(graphed.engine(), arrivals) == wanted


def test_each_adapter_answers_for_itself(graphed: Served) -> None:
    """Else the test above would compare four times the same."""
    seen = answers(graphed.engine(), [Arrival(name, 1, 8) for name in ("", *ADAPTERS)])

    # All prompts have one token, each its own: compare each with the model as it is.
    plain = answers(graphed.engine(), [Arrival("", 1, 8) for _ in range(4)])
    assert seen["0"] == plain["0"]
    assert all(seen[each] != plain[each] for each in "123")


def test_adapters_that_come_later_are_read_by_graphs(eager: Served, graphed: Served) -> None:
    """A graph reads the slots, whatever lies in them by then."""
    for each in (eager, graphed):
        each.load(engine := each.engine(), "a", "c")
        wanted = answers(engine, [Arrival("c", 9)])

        assert answers(engine, [Arrival("a", 9)]) == wanted


def test_no_step_is_computed_op_by_op_for_its_adapters(graphed: Served) -> None:
    """Neither prompts nor decodes."""
    graphed.runner.graph_use.restart()

    answers(graphed.engine(), [Arrival("a", 9, 5), Arrival("", 4, 5), Arrival("b", 3, 5)])

    use = graphed.runner.graph_use
    assert (use.decodes, use.mixed, dict(use.eager)) == (4, 1, {})


@pytest.mark.parametrize("has_adapters", [False, True])
def test_graphs_are_captured_with_adapters_and_without(folder: Path, has_adapters: bool) -> None:
    """A step without them launches none of their kernels; an engine without has one kind."""
    capture, adapters = RecomputeCapture(), LoraAdapters(SLOTS, RANK) if has_adapters else None
    runner = kernel_runner(folder / "model", CAPACITY, graphs=False, adapters=adapters)
    done: list[float] = []

    sizes = decode_sizes(CAPACITY.max_batch_size)
    runner.capture_decodes(capture, sizes, done.append)

    assert capture.num_captured == len(sizes) * (1 + has_adapters)
    assert done == [number / capture.num_captured for number in range(capture.num_captured)]
    runner.capture_mixed(capture, SIZES, lambda _fraction: None)
    assert capture.num_captured == (len(sizes) + len(SIZES)) * (1 + has_adapters)
