"""A profile is bounded in steps, time and size, one at a time, and every call is answered."""

import gzip
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline_engine.process.step_profile import StepProfiler
from paceline_testing.clock import ManualClock
from paceline_testing.waiting import wait_until
from paceline_wire import ProfileSteps, StepTrace


class _Recording:
    """Notes what it is told."""

    def __init__(self, may_write: threading.Event) -> None:
        self.told: list[str] = []
        self._may_write = may_write

    def start(self) -> None:
        self.told.append("start")

    def step(self) -> None:
        self.told.append("step")

    def stop(self) -> None:
        self.told.append("stop")

    def export_chrome_trace(self, path: str) -> None:
        self._may_write.wait(30)
        Path(path).write_text("{}" * 10)


class _Loop:
    """A step loop with a profiler."""

    def __init__(self, *, max_bytes: int = 1000) -> None:
        self.clock = ManualClock()
        self.steps = 0
        self.answers: list[StepTrace] = []
        self.may_write = threading.Event()
        self.may_write.set()
        self.recordings: list[_Recording] = []
        self.profiler = StepProfiler(
            self.answers.append, clock=self.clock, record=self._record, max_bytes=max_bytes
        )

    def _record(self) -> _Recording:
        self.recordings.append(_Recording(self.may_write))
        return self.recordings[-1]

    def run(self, *, computes: bool = True) -> None:
        def step() -> None:
            self.steps += computes

        self.profiler.run(step, lambda: self.steps)

    def answer(self) -> StepTrace:
        wait_until(lambda: self.answers)
        return self.answers.pop()


@pytest.fixture
def loop() -> _Loop:
    return _Loop()


def test_it_ends_after_its_steps(loop: _Loop) -> None:
    """Turns of the loop that compute nothing are no steps."""
    loop.profiler.start(ProfileSteps(7, steps=2, within_s=30.0))
    for computes in (True, False, True, True):
        loop.run(computes=computes)

    answer = loop.answer()
    assert (answer.call, answer.steps, answer.error) == (7, 2, None)
    assert gzip.decompress(answer.chrome_gzip) == b"{}" * 10
    assert loop.recordings[0].told == ["start", "step", "step", "stop"]


def test_time_ends_it_with_what_ran(loop: _Loop) -> None:
    """Nobody waits for ever for an engine that has little to do."""
    loop.profiler.start(ProfileSteps(1, steps=5, within_s=30.0))
    loop.run()
    loop.clock.advance(30.0)
    loop.run(computes=False)

    assert loop.answer().steps == 1


def test_an_idle_engine_has_nothing_to_show(loop: _Loop) -> None:
    """And the answer says what to do."""
    loop.profiler.start(ProfileSteps(1, steps=5, within_s=30.0))
    loop.clock.advance(30.0)
    loop.run(computes=False)

    error = loop.answer().error
    assert error == "within_s: no step ran within 30 s; ask while requests run"


def _while_recording(loop: _Loop) -> None:
    loop.profiler.start(ProfileSteps(1, steps=1, within_s=30.0))


def _while_writing(loop: _Loop) -> None:
    loop.may_write.clear()
    _while_recording(loop)
    loop.run()


@pytest.mark.parametrize("until", [_while_recording, _while_writing])
def test_there_is_one_at_a_time(loop: _Loop, until: Callable[[_Loop], None]) -> None:
    """The profiler is the process's own, and a trace that is written takes memory."""
    until(loop)
    loop.profiler.start(ProfileSteps(2, steps=1, within_s=30.0))

    answer = loop.answer()
    assert (answer.call, answer.is_busy) == (2, True)
    loop.may_write.set()
    loop.run()
    assert loop.answer().call == 1


def test_a_trace_that_is_too_large_is_refused() -> None:
    """No viewer opens it, and the sidecar would hold it in memory."""
    loop = _Loop(max_bytes=19)
    loop.profiler.start(ProfileSteps(1, steps=1, within_s=30.0))
    loop.run()

    answer = loop.answer()
    assert answer.error == "steps: the trace of 1 steps must be at most 19 bytes, got 20"
    assert not answer.chrome_gzip
