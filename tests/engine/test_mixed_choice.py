"""Graphs serve the sizes of mixed steps at which they were measured to be faster."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core.batch import Batch, StepOutput
from paceline_engine.profiling.mixed_choice import SizeTimes, choose_sizes, measure, worth_it
from paceline_engine.profiling.mixed_probe import MixedProbe, mixed_step
from paceline_engine.profiling.probe_steps import ProbeStep
from paceline_engine.profiling.step_timer import StepTimer, scratch_batch
from paceline_testing.clock import ManualClock
from paceline_testing.engines import a_capacity
from paceline_wire.limits import Capacity


@dataclass
class TimedGraphs:
    """Graphs that a test times as it likes."""

    sizes: Sequence[int] = (8, 16, 32)
    enabled: Sequence[int] = ()
    clock: ManualClock = field(default_factory=ManualClock)
    eager_s: float = 0.010
    shares: dict[int, float] = field(default_factory=dict)
    """Shares of the eager time, by the size that is enabled."""
    asked: list[tuple[int, Sequence[int]]] = field(default_factory=list)

    def enable(self, sizes: Sequence[int]) -> None:
        self.enabled = tuple(sizes)

    def seconds_of(self, num_tokens: int) -> tuple[float, ...]:
        self.asked.append((num_tokens, self.enabled))
        share = self.shares.get(self.enabled[0], 1.0) if self.enabled else 1.0
        self.clock.advance(self.eager_s * share)
        return (self.eager_s * share,)


def test_a_size_is_chosen_where_it_takes_at_most_95_percent() -> None:
    """Less gain is noise, and what is padded is real work."""
    times = {
        32: SizeTimes(replayed=(0.50,), eager=(1.00,)),
        8: SizeTimes(replayed=(0.95,), eager=(1.00,)),
        16: SizeTimes(replayed=(0.96,), eager=(1.00,)),
    }

    assert worth_it((8, 16, 32), times) == (8, 32)
    assert worth_it((8, 16, 32), {}) == ()


def test_what_lies_below_a_size_with_a_gain_gains_too() -> None:
    """A shorter step takes the device less, and the host as long."""
    times = {16: SizeTimes(replayed=(0.5,), eager=(1.0,))}

    assert worth_it((4, 8, 16, 32), times) == (4, 8, 16)


def test_one_slow_moment_does_not_decide() -> None:
    """The median of the times of each way counts."""
    times = {8: SizeTimes(replayed=(0.5, 9.0, 0.5), eager=(1.0, 1.0, 0.1))}

    assert worth_it((8,), times) == (8,)


def test_a_size_is_measured_at_the_shortest_step_padded_to_it_both_ways_in_turn() -> None:
    """There padding costs the most; and whatever drifts meets both ways alike."""
    graphs = TimedGraphs(sizes=(8, 16))

    times = measure(graphs, graphs.seconds_of, clock=graphs.clock)

    assert list(times) == [16, 8]
    assert graphs.asked[:4] == [(9, (16,)), (9, ()), (9, (16,)), (9, ())]
    assert graphs.asked[8:10] == [(1, (8,)), (1, ())]
    # The first of each way pays for what is compiled.
    assert len(graphs.asked) == 2 * 2 * (3 + 1)
    assert all(len(one.eager) == len(one.replayed) == 3 for one in times.values())
    assert graphs.enabled == ()


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=13, unique=True), st.data())
def test_the_largest_size_with_a_gain_is_found_by_few(
    sizes: list[int], data: st.DataObject
) -> None:
    """Thirteen sizes by four, whichever it is."""
    sizes = sorted(sizes)
    gaining = data.draw(st.integers(0, len(sizes)))
    graphs = TimedGraphs(sizes=sizes, shares=dict.fromkeys(sizes[:gaining], 0.5))

    times = measure(graphs, graphs.seconds_of, clock=graphs.clock)

    assert worth_it(sizes, times) == tuple(sizes[:gaining])
    assert len(times) <= len(sizes).bit_length()


def test_no_size_is_begun_after_the_time_is_up() -> None:
    """A start has an end; what is larger than any that gained is computed op by op."""
    sizes = (8, 16, 32, 48, 64, 96, 128)
    graphs = TimedGraphs(sizes=sizes, eager_s=0.2, shares=dict.fromkeys(sizes, 0.5))

    times = measure(graphs, graphs.seconds_of, clock=graphs.clock, budget_s=2.0)

    assert list(times) == [48, 96]
    assert worth_it(sizes, times) == sizes[:6]


def test_a_size_that_the_engine_cannot_hold_is_left_out() -> None:
    """Its steps cannot come either, or are too odd to be measured."""
    graphs = TimedGraphs(sizes=(8, 16), shares={8: 0.5})

    times = measure(
        graphs,
        lambda num_tokens: None if num_tokens > 8 else graphs.seconds_of(num_tokens),
        clock=graphs.clock,
    )

    assert list(times) == [8]
    assert worth_it((8, 16), times) == (8,)


def test_the_choice_is_told_in_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    """Who looks for the reason of a step's time finds what was measured."""
    graphs = TimedGraphs(shares={8: 0.25, 16: 0.5, 32: 1.5})
    caplog.set_level(logging.INFO)

    assert choose_sizes(graphs, graphs.seconds_of, clock=graphs.clock) == (8, 16)
    (line,) = caplog.messages
    assert "at up to 8, 16 tokens" in line
    assert "16: 0.50, 32: 1.50" in line


def test_without_a_gain_nothing_is_chosen(caplog: pytest.LogCaptureFixture) -> None:
    """The sentence says so, too."""
    graphs = TimedGraphs()
    caplog.set_level(logging.INFO)

    assert choose_sizes(graphs, graphs.seconds_of, clock=graphs.clock) == ()
    assert "at up to no tokens" in caplog.messages[0]


CAPACITIES = st.builds(
    Capacity,
    max_batch_size=st.integers(1, 300),
    max_token_budget=st.integers(1, 2048),
    num_blocks=st.integers(1, 4000),
    block_size=st.sampled_from([4, 16, 32]),
    max_model_len=st.integers(1, 4096),
)


@given(st.integers(1, 1024), CAPACITIES)
def test_a_measured_step_is_one_that_could_run(num_tokens: int, capacity: Capacity) -> None:
    """It has as many tokens as it is to have, and no more rows or blocks than there are."""
    point = mixed_step(num_tokens, capacity)

    if point is None:
        return
    assert point.features.tokens == num_tokens <= capacity.max_token_budget
    assert point.prefill
    assert point.decode + len(point.chunks) <= capacity.max_batch_size
    assert point.num_blocks(capacity.block_size) <= capacity.num_blocks
    assert max(point.chunks) < capacity.max_model_len
    assert point.context_each < capacity.max_model_len
    assert point.context_each or not point.decode
    scratch_batch(point, capacity.block_size)


def test_a_measured_step_is_decodes_beside_a_prompt() -> None:
    """As they mostly come; of a long step the prompt is the most."""
    large = a_capacity(
        max_batch_size=256, max_token_budget=2048, num_blocks=9999, max_model_len=4096
    )

    assert mixed_step(1, large) == ProbeStep(0, 512, 1, prompt_tokens=1)
    assert mixed_step(9, large) == ProbeStep(4, 512, 5, prompt_tokens=5)
    assert mixed_step(385, large) == ProbeStep(32, 512, 353, prompt_tokens=353)


def test_a_small_engine_measures_what_it_holds() -> None:
    """One row leaves no decode beside a prompt; few blocks, short contexts."""
    one_row = a_capacity(max_batch_size=1, num_blocks=64, max_model_len=128)
    few_blocks = a_capacity(max_batch_size=8, num_blocks=8, block_size=4, max_model_len=128)

    assert mixed_step(9, one_row) == ProbeStep(0, 127, 9, prompt_tokens=9)
    assert mixed_step(9, few_blocks) == ProbeStep(4, 4, 5, prompt_tokens=5)
    assert mixed_step(40, few_blocks) is None
    assert mixed_step(65, one_row) is None


@dataclass
class Device:
    """Takes 30 ms for a step that the host launches in 10; at most two are on their way."""

    clock: ManualClock
    launched: list[Batch] = field(default_factory=list)
    settled: int = 0
    free_at: float = 0.0

    def launch(self, batch: Batch) -> "OnItsWay":
        assert len(self.launched) - self.settled < 2
        self.launched.append(batch)
        self.clock.advance(0.010)
        self.free_at = max(self.free_at, self.clock.now) + 0.030
        return OnItsWay(self, self.free_at)


@dataclass
class OnItsWay:
    device: Device
    ends_at: float

    def result(self) -> StepOutput:
        clock = self.device.clock
        clock.advance(max(0.0, self.ends_at - clock.now))
        self.device.settled += 1
        return StepOutput(())


@pytest.mark.parametrize(("overlap", "seconds"), [(True, 0.030), (False, 0.040)], ids=str)
def test_a_step_is_timed_as_it_will_run(overlap: bool, seconds: float) -> None:
    """Where steps overlap, what the host takes beside the device costs nothing."""
    clock = ManualClock()
    device = Device(clock)
    probe = MixedProbe(StepTimer(device, a_capacity(), clock, overlap=overlap), a_capacity())

    found = probe.seconds_of(9)

    assert found == pytest.approx([seconds] * len(found or ()))
    assert len(found or ()) >= 3
    assert device.settled == len(device.launched)
    assert probe.seconds_of(999) is None
