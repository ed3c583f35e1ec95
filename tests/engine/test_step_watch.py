"""A step that does not return is seen, and no other."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType

import pytest

from paceline_engine.process.step_watch import StepLimits, StepWatch, is_compiling
from paceline_engine.process.thread_times import (
    ThreadTime,
    ThreadTimes,
    read_thread_times,
    use_between,
)
from paceline_testing.clock import ManualClock

DEADLINE_S = 60.0
LEAST_S = 8.0
LOOK_S = LEAST_S / 20


@dataclass(slots=True)
class World:
    """A clock, and one thread that steps."""

    clock: ManualClock = field(default_factory=ManualClock)
    ran_s: float = 0.0
    waited_s: float = 0.0
    is_runnable: bool = False
    page_faults: int = 0

    def times(self) -> ThreadTimes:
        time = ThreadTime(self.ran_s, self.waited_s, self.is_runnable)
        return ThreadTimes({1: time}, self.page_faults)

    def sleep(self) -> None:
        self.clock.advance(LOOK_S)

    def run(self) -> None:
        self.sleep()
        self.ran_s += LOOK_S

    def wait_for_a_core(self) -> None:
        self.sleep()
        self.waited_s += 0.9 * LOOK_S
        self.ran_s += 0.1 * LOOK_S

    def wait_and_wait(self) -> None:
        """The kernel counts a wait once it is over."""
        self.sleep()
        self.is_runnable = True

    def read_a_page(self) -> None:
        self.sleep()
        self.page_faults += 1

    def stand_still(self) -> None:
        """As the whole process does that is paused."""
        self.clock.advance(3600.0)


def a_watch(world: World, *, expected_s: float = 0.1, on_a_cpu: bool = True) -> StepWatch:
    limits = StepLimits(LEAST_S, lambda: expected_s, sleeps_when_hung=on_a_cpu)
    return StepWatch(limits, lambda _: None, world.clock, world.times)


def hung_after_s(watch: StepWatch, world: World, passes: Callable[[], None]) -> float | None:
    """How long after its begin the step that does nothing else is seen; None within 200 s."""
    began_at = world.clock.now
    with watch:
        for _ in range(round(200 / LOOK_S)):
            if watch.look():
                return world.clock.now - began_at
            passes()
    return None


@pytest.mark.parametrize("on_a_cpu", [True, False], ids=["CPU", "GPU"])
@pytest.mark.parametrize("does", ["sleep", "run"])
def test_a_step_that_hangs_is_seen_within_ten_seconds(does: str, on_a_cpu: bool) -> None:
    """Whether its thread sleeps or runs on and on."""
    world = World()
    watch = a_watch(world, on_a_cpu=on_a_cpu)

    seen_s = hung_after_s(watch, world, getattr(world, does))

    assert seen_s is not None
    assert LEAST_S <= seen_s < 10.0


def test_a_long_step_of_a_cpu_that_sleeps_is_seen_as_soon() -> None:
    """However long it should take, something of it must run."""
    world = World()

    seen_s = hung_after_s(a_watch(world, expected_s=30.0), world, world.sleep)

    assert seen_s is not None
    assert seen_s < 10.0


@pytest.mark.parametrize("on_a_cpu", [True, False], ids=["CPU", "GPU"])
def test_a_step_that_should_take_long_may(on_a_cpu: bool) -> None:
    """A prompt of thousands of tokens takes seconds on a CPU: ten times that is too long."""
    world = World()

    seen_s = hung_after_s(a_watch(world, expected_s=5.0, on_a_cpu=on_a_cpu), world, world.run)

    assert seen_s == pytest.approx(50.0, abs=1.0)


@pytest.mark.parametrize("does", ["wait_and_wait", "read_a_page"])
def test_a_step_that_is_held_up_has_not_hung(does: str) -> None:
    """Its core is taken for minutes, or a page of the weights must be read again."""
    world = World()

    seen_s = hung_after_s(a_watch(world), world, getattr(world, does))

    assert seen_s is None


@pytest.mark.parametrize(("expected_s", "after_s"), [(0.1, 20.0), (0.5, 50.0)])
def test_what_a_step_waits_for_a_core_does_not_count(expected_s: float, after_s: float) -> None:
    """With a tenth of a core, two seconds of its own take twenty."""
    world = World()

    seen_s = hung_after_s(a_watch(world, expected_s=expected_s), world, world.wait_for_a_core)

    assert seen_s == pytest.approx(after_s, abs=1.0)


def test_a_process_that_was_paused_goes_on() -> None:
    """An hour in which the watch itself stood still is not an hour of the step."""
    world = World()
    watch = a_watch(world)

    with watch:
        for _ in range(5):
            assert not watch.look()
            world.stand_still()

        assert not watch.look()


def test_the_time_of_each_step_is_its_own() -> None:
    """An engine that has run for a day has not hung."""
    world = World()
    watch = a_watch(world)

    for _ in range(100):
        with watch:
            for _ in range(15):
                world.run()
                assert not watch.look()
        world.sleep()
        assert not watch.look()


def test_a_kernel_that_is_compiled_has_time() -> None:
    """Once in a cache's life, and it takes seconds."""
    frames: dict[str, FrameType] = {}
    for module in ("triton.compiler.compiler", "triton.runtime.jit"):
        code = "import sys; frames[__name__] = sys._getframe()"
        exec(code, {"__name__": module, "frames": frames})

    assert is_compiling(frames["triton.compiler.compiler"])
    assert not is_compiling(frames["triton.runtime.jit"])
    assert not is_compiling(None)


def test_the_thread_tells_of_a_hang_once() -> None:
    """It looks by itself, while the step loop stands still."""
    told = threading.Event()
    heard: list[float] = []

    def hung(hung_s: float) -> None:
        heard.append(hung_s)
        told.set()

    watch = StepWatch(StepLimits(3.0), hung)
    watch.start()
    with watch:
        assert told.wait(DEADLINE_S)
    watch.close()

    assert len(heard) == 1


def test_a_timeout_of_0_watches_nothing() -> None:
    """Where somebody wants to wait for ever."""
    watch = StepWatch(StepLimits(0.0), hung=lambda _: None)
    watch.start()

    with watch:
        assert not [each for each in threading.enumerate() if each.name == "paceline-watch"]
    watch.close()


def test_the_kernel_tells_of_each_thread() -> None:
    """The one that steps, not those of Python beside it."""
    is_over = threading.Event()
    began = threading.Event()
    number = 0

    def run() -> None:
        nonlocal number
        number = threading.get_native_id()
        began.set()
        while not is_over.is_set():
            pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert began.wait(DEADLINE_S)
        before = after = read_thread_times(number)
        while after.threads[number].ran_s - before.threads[number].ran_s < 0.2:
            after = read_thread_times(number)
    finally:
        is_over.set()

    assert threading.get_native_id() not in after.threads
    same_faults = replace(after, page_faults=before.page_faults)
    assert not use_between(before, same_faults, 0.4).is_asleep


def test_where_the_kernel_tells_nothing_nothing_sleeps(tmp_path: Path) -> None:
    """Then time alone decides."""
    none = read_thread_times(1, tmp_path)

    use = use_between(none, none, 1.0)

    assert (use.held_up_s, use.is_asleep) == (0.0, False)
