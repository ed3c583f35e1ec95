"""What a graph shows beside the latencies: changes, and spells of unusual phases."""

from typing import Any

from paceline_testing.reports import a_change
from paceline_tuner.annotations import annotations
from paceline_tuner.decision import Decision
from paceline_tuner.service_report import ChangeOutcome, Phase, PredictionCheck


def a_decision(at: float, phase: Phase = "Tracking", **fields: Any) -> Decision:
    base: dict[str, Any] = {
        "verdict": "Meeting",
        "binding": "SLA:itl",
        "reason": "the ITL target binds",
        "current": None,
        "wanted": None,
        "chosen": None,
        "applied": True,
    }
    return Decision(at=at, pod="one", phase=phase, **base | fields)


def test_a_spell_lasts_until_another_phase_comes() -> None:
    """A region on the graph, and not a mark for each tick."""
    decisions = [
        a_decision(10.0),
        a_decision(15.0, "Backoff"),
        a_decision(20.0, "Backoff"),
        a_decision(25.0),
        a_decision(30.0, "Frozen"),
        a_decision(35.0, "Frozen"),
    ]

    marks = annotations("ns/name", decisions, 0)

    assert [(m.time, m.timeEnd, m.tags[-2]) for m in marks] == [
        (15_000, 25_000, "Backoff"),
        (30_000, 35_000, "Frozen"),
    ]


def test_a_change_tells_what_became_of_it() -> None:
    """The outcome is learned later, and belongs to the change."""
    outcome = ChangeOutcome(of=10.0, steps=40, step_ms=PredictionCheck(290.0, 320.0, 0.103))
    decisions = [a_decision(10.0, change=a_change(at=10.0)), a_decision(15.0, outcome=outcome)]

    (mark,) = annotations("ns/name", decisions, 0)

    assert mark.text == (
        "batch 32 → 32, tokens 2048 → 160: ITL binds. "
        "Then a step took 320.0 ms, 290.0 ms were predicted"
    )


def test_what_ended_before_is_left_out() -> None:
    """A dashboard asks for the time that it shows."""
    decisions = [a_decision(10.0, "Backoff"), a_decision(20.0), a_decision(30.0, "Frozen")]

    assert [m.time for m in annotations("ns/name", decisions, 20_001)] == [30_000]
    assert len(annotations("ns/name", decisions, 20_000)) == 2
