"""A profile at start: within its time, in blocks that nobody owns, and gone without a trace."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.batch import Batch, Flight, Runner, StepOutput
from paceline_engine.pacing import make_pacer
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.profiling.probe_steps import ProbeStep, probe_steps
from paceline_engine.profiling.profile import begin_with_profile, profile
from paceline_engine.profiling.step_timer import StepTimer, scratch_batch
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_135m_info, a_capacity
from paceline_testing.tiny_engine import TinyEngine
from paceline_wire import MeasuredStep, Sampling
from paceline_wire.limits import Capacity

CAPACITY = a_capacity(max_batch_size=64, max_token_budget=512, num_blocks=512, max_model_len=256)
Cost = Callable[[int, int, int], float]


def usual_ms(decode: int, prefill: int, context: int) -> float:
    return 20.0 + 0.5 * decode + 0.2 * prefill + 0.001 * context


@dataclass
class Device:
    """Computes nothing, and takes as long as it should."""

    clock: ManualClock
    true_ms: Cost = usual_ms
    host_ms: float = 0.0
    """To launch a step, while the device is busy with the one before."""
    batches: list[Batch] = field(default_factory=list)
    free_at: float = 0.0

    def launch(self, batch: Batch) -> "InFlight":
        self.batches.append(batch)
        work = batch.features(_context(batch))
        self.clock.advance(self.host_ms / 1e3)
        begun_at = max(self.clock.now, self.free_at)
        self.free_at = begun_at + self.true_ms(work.decode, work.prefill, work.context) / 1e3
        return InFlight(self.clock, self.free_at, batch)


@dataclass
class InFlight:
    clock: ManualClock
    ends_at: float
    batch: Batch

    def result(self) -> StepOutput:
        self.clock.now = max(self.clock.now, self.ends_at)
        return StepOutput([0] * len(self.batch.chunks))


def _context(batch: Batch) -> int:
    return sum(piece.start + 1 for piece in batch.chunks[: batch.num_decodes])


def a_profile(
    device: Device,
    *,
    budget_s: float,
    capacity: Capacity = CAPACITY,
    overlap: bool = False,
    believed_times: float = 1.0,
) -> tuple[MeasuredStep, ...]:
    def expected_ms(step: ProbeStep) -> float:
        return believed_times * usual_ms(step.decode, step.prefill, step.features.context)

    timer = StepTimer(device, capacity, device.clock, overlap=overlap)
    return profile(timer, capacity, expected_ms, budget_s=budget_s, clock=device.clock)


def test_every_size_is_told_as_it_was_measured() -> None:
    """With time enough, and no noise: all sizes, each with what it takes."""
    steps = a_profile(Device(ManualClock()), budget_s=1e6)

    assert len(steps) == len(probe_steps(CAPACITY, lambda step: step.features.tokens))
    for step in steps:
        assert step.wall_ms == pytest.approx(usual_ms(step.decode, step.prefill, step.context))


@pytest.mark.parametrize("overlap", [False, True], ids=["one by one", "overlapped"])
@settings(max_examples=25)
@given(
    budget_s=st.floats(0.001, 20),
    believed_times=st.sampled_from([0.01, 0.3, 1.0, 3.0, 100.0]),
    noise=st.lists(st.floats(0.9, 1.1), min_size=1, max_size=20),
)
def test_the_time_given_is_kept(
    overlap: bool, budget_s: float, believed_times: float, noise: list[float]
) -> None:
    """However wrong the prior's scale is: at most the step that showed it goes beyond."""
    clock = ManualClock()
    turns = 0
    longest_ms = 0.0

    def true_ms(decode: int, prefill: int, context: int) -> float:
        nonlocal turns, longest_ms
        turns += 1
        took = usual_ms(decode, prefill, context) * noise[turns % len(noise)]
        longest_ms = max(longest_ms, took)
        return took

    started = clock.now
    a_profile(
        Device(clock, true_ms), budget_s=budget_s, overlap=overlap, believed_times=believed_times
    )

    assert clock.now - started <= budget_s + 4 * longest_ms / 1e3


def test_a_device_that_stalls_ends_the_profile() -> None:
    """Ten seconds for one step: nothing is repeated, and what was measured by then stays."""
    clock = ManualClock()
    device = Device(clock)

    def true_ms(decode: int, prefill: int, context: int) -> float:
        return 10_000.0 if len(device.batches) == 9 else usual_ms(decode, prefill, context)

    device.true_ms = true_ms
    started = clock.now
    steps = a_profile(device, budget_s=2.0)

    assert 10.0 <= clock.now - started < 12.0
    assert len(steps) >= 4


@pytest.mark.parametrize("stalled", [1, 2])
def test_a_stall_of_one_step_leaves_the_larger_sizes(stalled: int) -> None:
    """Compiling, or a neighbour, at the first size: the next is not taken to be as slow."""
    device = Device(ManualClock())

    def true_ms(decode: int, prefill: int, context: int) -> float:
        times = 20.0 if len(device.batches) == stalled else 1.0
        return usual_ms(decode, prefill, context) * times

    device.true_ms = true_ms
    undisturbed = a_profile(Device(ManualClock()), budget_s=2.0)
    disturbed = a_profile(device, budget_s=2.5)

    assert len(disturbed) >= len(undisturbed) - 1


def test_a_slow_moment_is_outvoted() -> None:
    """A neighbour that doubles steps for a third of the time changes no median."""
    device = Device(ManualClock())
    sizes = len(probe_steps(CAPACITY, lambda step: step.features.tokens))

    def true_ms(decode: int, prefill: int, context: int) -> float:
        is_slow = 2 * sizes <= len(device.batches) - 1 < 3 * sizes
        return usual_ms(decode, prefill, context) * (2.0 if is_slow else 1.0)

    device.true_ms = true_ms
    for step in a_profile(device, budget_s=1e6):
        assert step.wall_ms == pytest.approx(usual_ms(step.decode, step.prefill, step.context))


def test_overlapped_steps_are_timed_as_they_will_run() -> None:
    """The host's time is hidden behind the device, as it is while the engine serves."""
    together = a_profile(Device(ManualClock(), host_ms=5.0), budget_s=1e6, overlap=True)
    apart = a_profile(Device(ManualClock(), host_ms=5.0), budget_s=1e6)

    for step in together:
        assert step.wall_ms == pytest.approx(usual_ms(step.decode, step.prefill, step.context))
    assert apart[0].wall_ms == pytest.approx(together[0].wall_ms + 5.0)


def test_a_step_takes_as_long_as_the_host_takes_to_launch_it() -> None:
    """Where the device is done before: steps come no faster than they are launched."""
    steps = a_profile(Device(ManualClock(), host_ms=60.0), budget_s=1e6, overlap=True)

    times = [usual_ms(step.decode, step.prefill, step.context) for step in steps]
    assert min(times) < 60.0 < max(times)
    assert [step.wall_ms for step in steps] == pytest.approx([max(60.0, ms) for ms in times])


@given(
    step=st.builds(
        ProbeStep,
        decode=st.integers(0, 8),
        context_each=st.integers(1, 40),
        prefill=st.integers(0, 60),
        prompt_tokens=st.integers(1, 60),
        prefill_context=st.integers(0, 30),
    ),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_a_scratch_step_is_well_formed(step: ProbeStep, block_size: int) -> None:
    """Blocks and rows of its own for each sequence, and the features that were asked for."""
    batch = scratch_batch(step, block_size)

    held = [block for piece in batch.chunks for block in piece.request.block_ids]
    rows = [piece.request.row for piece in batch.chunks]
    assert sorted(held) == list(range(step.num_blocks(block_size)))
    assert rows == list(range(len(batch.chunks)))
    for piece in batch.chunks:
        assert piece.start + piece.count == len(piece.request.token_ids)
        assert piece.start + piece.count <= len(piece.request.block_ids) * block_size
    features = batch.features(_context(batch))
    assert (features.decode, features.prefill) == (step.decode, step.prefill)
    assert features.context == step.features.context
    assert features.attention == pytest.approx(step.features.attention, abs=1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    """A whole model."""
    return TinyEngine(tmp_path_factory.mktemp("profile"))


@dataclass
class Ticking:
    """A real runner, on a clock that moves by the sizes of its steps."""

    inner: Runner
    clock: ManualClock
    num_steps: int = 0

    def launch(self, batch: Batch) -> Flight:
        self.num_steps += 1
        self.clock.advance(usual_ms(batch.num_decodes, batch.num_tokens, 0) / 1e3)
        return self.inner.launch(batch)


def test_a_profiled_engine_answers_as_one_that_was_not(tiny: TinyEngine) -> None:
    """What it wrote into blocks is nobody's: no prefix is found there, and no step is counted."""
    prompts = {"a": [0] * 40, "b": [5, 6, 7] * 9}
    sampling = Sampling(max_tokens=12, temperature=0.0, ignore_eos=True)
    before = tiny.run(prompts, sampling)
    loaded, clock = tiny.loaded, ManualClock()
    runner = Ticking(loaded.runner, clock)
    pacer = make_pacer(a_135m_info(), loaded.capacity)

    started = clock.now
    taken = begin_with_profile(
        pacer, runner, loaded.capacity, overlap=False, budget_s=2.0, clock=clock
    )
    engine = tiny.engine()

    assert taken is not None
    assert taken.is_used
    assert taken.took_s == pytest.approx(clock.now - started)
    assert len(taken.steps) > 6
    assert runner.num_steps > 3 * len(taken.steps)
    assert pacer.info().origin == "profile"
    assert (pacer.info().samples, pacer.info().valid) == (0, False)
    load = engine.load()
    assert (load.kv_used_blocks, load.kv_cached_blocks, load.prompt_tokens) == (0, 0, 0)
    assert engine.log.take() == []
    assert tiny.run(prompts, sampling) == before


def test_a_time_of_nothing_measures_nothing() -> None:
    """Nor does an engine whose pacer has no model: no step is run."""
    device = Device(ManualClock())

    for pacer, budget_s in ((make_pacer(a_135m_info(), CAPACITY), 0.0), (NoPacer(), 3.0)):
        taken = begin_with_profile(
            pacer, device, CAPACITY, overlap=False, budget_s=budget_s, clock=device.clock
        )
        assert taken is None
    assert device.batches == []


def test_a_profile_that_is_too_short_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Two sizes are no model; whoever set the time is taken which setting it is."""
    device, pacer = Device(ManualClock()), make_pacer(a_135m_info(), CAPACITY)
    before = pacer.info()

    taken = begin_with_profile(
        pacer, device, CAPACITY, overlap=False, budget_s=0.2, clock=device.clock
    )

    assert taken is not None
    assert not taken.is_used
    assert pacer.info() == before
    assert "PACELINE_ENGINE_PROFILE_S is too short" in caplog.text
