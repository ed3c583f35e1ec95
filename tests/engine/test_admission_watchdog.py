"""Stuck admission is counted once per spell, and nothing that is meant to wait counts."""

import logging
from dataclasses import replace

import pytest

from paceline_engine.scheduling.scheduler import ContinuousScheduler
from paceline_engine.scheduling.watchdog import (
    LEAST_STEPS,
    LONGEST_S,
    LONGEST_STEPS,
    AdmissionWatchdog,
    Queue,
)
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit
from paceline_wire.limits import Limits

STUCK = Queue(
    waiting=1,
    running=3,
    max_batch_size=4,
    free_blocks=10,
    needed_blocks=7,
    has_prompts=False,
)


def test_a_hundred_steps_are_one_spell() -> None:
    """However long it lasts after that."""
    watchdog = AdmissionWatchdog()

    told = [watchdog.see(STUCK, now=0.0) for _ in range(3 * LONGEST_STEPS)]

    assert told.index(True) == LONGEST_STEPS - 1
    assert (sum(told), watchdog.num_spells) == (1, 1)


def test_slow_steps_are_a_spell_after_seconds() -> None:
    """A hundred steps of a CPU may be a minute; yet one long step proves nothing."""
    watchdog = AdmissionWatchdog()

    told = [watchdog.see(STUCK, now=step * LONGEST_S) for step in range(LEAST_STEPS)]

    assert told == [False] * (LEAST_STEPS - 1) + [True]


@pytest.mark.parametrize(
    "reason",
    [
        replace(STUCK, waiting=0),
        replace(STUCK, running=4),
        replace(STUCK, free_blocks=9),
        replace(STUCK, has_prompts=True),
    ],
    ids=["nobody waits", "no row is free", "its blocks are not free", "prompts are computed"],
)
def test_a_step_with_a_reason_ends_the_spell(reason: Queue) -> None:
    """What is short of being stuck never adds up to it."""
    watchdog = AdmissionWatchdog()
    for _ in range(3):
        for _ in range(LONGEST_STEPS - 1):
            assert not watchdog.see(STUCK, now=0.0)
        assert not watchdog.see(reason, now=0.0)

    assert watchdog.num_spells == 0


def test_an_engine_that_admits_nobody_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Once per spell, with the numbers; telemetry counts it."""
    under_test = EngineUnderTest(limits=Limits(4, 64))
    under_test.submit(a_submit("runs", max_tokens=120))
    under_test.step()
    scheduler = under_test.engine.scheduler
    assert isinstance(scheduler, ContinuousScheduler)
    monkeypatch.setattr(scheduler._prefills, "share", lambda *_args, **_options: [])  # the defect
    under_test.submit(a_submit("waits", [1, 2, 3, 4, 5]))

    with caplog.at_level(logging.WARNING):
        for _ in range(LONGEST_STEPS + 10):
            under_test.step()

    assert under_test.engine.load().stuck_admissions == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "waiting=1, running=1, max_batch_size=4" in line


@pytest.mark.parametrize("scheduling", ["continuous", "static"])
def test_a_busy_engine_is_not_stuck(scheduling: str) -> None:
    """Long prompts, few blocks, and batches that run to their end keep others waiting rightly."""
    under_test = EngineUnderTest(
        a_capacity(num_blocks=40, max_batch_size=4, max_model_len=160),
        limits=Limits(4, 4),
        scheduling="static" if scheduling == "static" else "continuous",
    )
    under_test.submit(
        *(a_submit(f"{n}", list(range(n, n + 100)), max_tokens=20 + n) for n in range(8))
    )
    under_test.submit(*(a_submit(f"short {n}", [n], max_tokens=120) for n in range(4)))
    under_test.run_to_end(max_steps=5000)

    assert under_test.engine.load().stuck_admissions == 0
