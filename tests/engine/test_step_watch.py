"""A step that does not return is seen, and no other."""

import threading

from paceline_engine.process.step_watch import StepTimes, StepWatch
from paceline_testing.clock import ManualClock

DEADLINE_S = 60.0


def test_a_step_has_hung_once_its_time_is_over() -> None:
    """Not before, and not while no step runs."""
    times = StepTimes(began_at=100.0)

    assert times.hung_s(219.9, timeout_s=120.0) is None
    assert times.hung_s(220.0, timeout_s=120.0) == 120.0
    assert StepTimes().hung_s(1e9, timeout_s=120.0) is None


def test_the_time_of_each_step_is_its_own() -> None:
    """An engine that has run for a day has not hung."""
    clock = ManualClock()
    watch = StepWatch(120.0, hung=lambda _: None, clock=clock)

    for _ in range(3):
        with watch:
            clock.advance(100.0)
            assert watch.times.hung_s(clock.now, 120.0) is None
        clock.advance(1000.0)

    assert watch.times.hung_s(clock.now, 120.0) is None


def test_the_thread_tells_of_a_hang_once() -> None:
    """It looks by itself, while the step loop stands still."""
    clock = ManualClock()
    told = threading.Event()
    heard: list[float] = []

    def hung(hung_s: float) -> None:
        heard.append(hung_s)
        told.set()

    watch = StepWatch(60.0, hung, clock)
    watch.start()
    with watch:
        clock.advance(61.0)

        assert told.wait(DEADLINE_S)
    watch.close()
    assert heard == [61.0]


def test_a_timeout_of_0_watches_nothing() -> None:
    """On a CPU a step may rightly take minutes."""
    watch = StepWatch(0.0, hung=lambda _: None)
    watch.start()

    with watch:
        assert not [each for each in threading.enumerate() if each.name == "paceline-watch"]
    watch.close()
