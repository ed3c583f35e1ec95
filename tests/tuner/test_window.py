"""Telemetry that contradicts itself must not be decided from."""

import math
from typing import Any

import pytest

from paceline_testing.telemetry import a_fit, a_request, a_step, a_telemetry
from paceline_tuner.telemetry import Load, SketchSlice, Telemetry
from paceline_tuner.window import Window


def a_window() -> Window:
    window = Window()
    steps = tuple(a_step(i, 90.0 + i * 0.1) for i in range(100))
    window.add(a_telemetry(100.0, steps=steps, requests=(a_request(200, 99.0),)))
    return window


def test_good_telemetry_becomes_evidence() -> None:
    """What a decision needs is there, oldest first."""
    evidence = a_window().evidence(60.0)

    assert evidence is not None
    assert len(evidence.steps) == 100
    assert [r.seq for r in evidence.requests] == [200]


@pytest.mark.parametrize(
    ("telemetry", "trouble"),
    [
        (a_telemetry(99.0), "clock went back"),
        (a_telemetry(100.0), "stands still"),
        (a_telemetry(math.nan), "not a number"),
        (a_telemetry(105.0, ready=False), "not ready"),
        (a_telemetry(105.0, limits=None), "lacks limits"),
        (a_telemetry(105.0, model=a_fit(q_r=math.nan)), "cannot be"),
        (a_telemetry(105.0, model=a_fit(theta=(1.0, -2.0, 0.0, 0.0, 0.0))), "cannot be"),
        (a_telemetry(105.0, load=Load(8, 0, 0, output_tokens=3)), "counters went back"),
    ],
    ids=["back", "still", "nan", "not-ready", "no-limits", "nan-model", "negative", "counters"],
)
def test_contradictions_are_named_and_give_no_evidence(telemetry: Telemetry, trouble: str) -> None:
    """A frozen tuner must say what it cannot believe."""
    window = a_window()

    window.add(telemetry)

    assert trouble in window.trouble
    assert window.evidence(60.0) is None


def test_a_new_instance_starts_an_empty_window() -> None:
    """Steps of the engine that died say nothing of the one that came."""
    window = a_window()

    window.add(a_telemetry(50.0, instance="b", steps=(a_step(900, 49.0),)))

    evidence = window.evidence(60.0)
    assert evidence is not None
    assert [step.seq for step in evidence.steps] == [900]
    assert evidence.requests == ()


def test_records_that_are_not_numbers_are_left_out() -> None:
    """One broken record must not spoil a window."""
    window = Window()
    window.add(
        a_telemetry(
            100.0,
            steps=(a_step(1, 99.0, wall_ms=math.nan), a_step(2, 99.5)),
            requests=(a_request(3, 99.0, ttft_ms=math.inf), a_request(4, 99.0)),
        )
    )

    evidence = window.evidence(60.0)

    assert evidence is not None
    assert [step.seq for step in evidence.steps] == [2]
    assert [request.seq for request in evidence.requests] == [4]


def test_a_slice_that_grew_replaces_itself() -> None:
    """The newest slice is still being filled when it is read first."""
    window = Window()
    for now, count in ((100.0, 4), (105.0, 9)):
        piece = SketchSlice("itl_ms", "interactive", 95.0, 0.01, 0, {200: count})
        window.add(a_telemetry(now, sketches=(piece,)))

    evidence = window.evidence(60.0)

    assert evidence is not None
    assert evidence.gaps().count == 9


def test_the_window_forgets_what_is_older() -> None:
    """Memory is bounded by time."""
    window = a_window()

    window.add(a_telemetry(1000.0))

    evidence = window.evidence(60.0)
    assert evidence is not None
    assert evidence.steps == ()
    assert evidence.requests == ()


@pytest.mark.parametrize(
    "fields",
    [
        {"steps": (a_step(1, 1e9),)},
        {"steps": (a_step(1, 99.0, decode=-1),)},
        {"steps": (a_step(1, 99.0, wall_ms=0.0),)},
        {"steps": (a_step(1, 99.0), a_step(2, 10.0))},
        {"requests": (a_request(1, 1e9),)},
        {"requests": (a_request(1, 99.0, arrived_at=99.5),)},
        {"requests": (a_request(1, 99.0, output_tokens=-3),)},
        {"requests": (a_request(1, 99.0, tpot_ms=-1.0),)},
        {"sketches": (SketchSlice("itl_ms", "interactive", 95.0, 0.01, 0, {99999: 1}),)},
        {"sketches": (SketchSlice("itl_ms", "interactive", 95.0, 0.999, 0, {200: 1}),)},
        {"sketches": (SketchSlice("itl_ms", "interactive", 1e9, 0.01, 0, {200: 1}),)},
    ],
    ids=[
        "future-step",
        "negative-step",
        "step-of-no-time",
        "step-out-of-turn",
        "future-request",
        "ended-before-it-came",
        "negative-length",
        "negative-time",
        "huge-bin",
        "coarse-bins",
        "future-slice",
    ],
)
def test_a_record_that_cannot_be_is_left_out(fields: dict[str, Any]) -> None:
    """One would block what is forgotten by time, or break the sums of all others."""
    window = Window()

    window.add(a_telemetry(100.0, **fields))

    evidence = window.evidence(60.0)
    assert evidence is not None
    kept = len(evidence.steps) + len(evidence.requests) + len(evidence.slices)
    assert kept == sum(len(records) for records in fields.values()) - 1


def test_an_answer_without_a_clock_is_asked_for_again() -> None:
    """Its records are not lost: the next answer starts where the last good one ended."""
    window = a_window()

    window.add(a_telemetry(math.nan, next=99))

    assert window.since == 7
    window.add(a_telemetry(105.0))
    evidence = window.evidence(60.0)
    assert evidence is not None
    assert len(evidence.steps) == 100


@pytest.mark.parametrize("alpha", [0.0, 1e-17, 1e-9, 0.5], ids=str)
def test_slices_whose_bins_a_float_cannot_tell_apart_are_left_out(alpha: float) -> None:
    """A pod that sends them must not break the tuner: a gap's bin would be sought by dividing."""
    lie = SketchSlice("itl_ms", "interactive", 95.0, alpha, 0, {10: 5})
    window = Window()

    window.add(a_telemetry(100.0, sketches=(lie,)))

    evidence = window.evidence(60.0)
    assert evidence is not None
    assert evidence.slices == ()
