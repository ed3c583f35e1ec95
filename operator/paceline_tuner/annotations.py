"""Decisions as Grafana's annotation queries read them: when, until when, tags and a text. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paceline_tuner.decision import Decision
from paceline_tuner.service_report import ChangeOutcome, LimitsChange, Phase

_UNUSUAL: frozenset[Phase] = frozenset({"Transition", "Backoff", "Frozen", "Unattainable"})
"""Phases that explain what a graph shows; the other phases are the usual ones."""


@dataclass(frozen=True, slots=True)
class Annotation:
    """One mark on a graph. The names are Grafana's; times are Unix milliseconds."""

    time: int
    timeEnd: int  # noqa: N815 - Grafana's name for it
    tags: tuple[str, ...]
    text: str


def annotations(service: str, decisions: Sequence[Decision], since_ms: float) -> list[Annotation]:
    """Mark the changes of one pod, and how long its unusual phases lasted, oldest first.

    `decisions` are of one pod, oldest first; marks that ended before `since_ms` are left out.
    """
    marks = [*_changes(service, decisions), *_phases(service, decisions)]
    return sorted((m for m in marks if m.timeEnd >= since_ms), key=lambda mark: mark.time)


def _changes(service: str, decisions: Sequence[Decision]) -> Iterator[Annotation]:
    outcomes = {d.outcome.of: d.outcome for d in decisions if d.outcome is not None}
    for decision in decisions:
        if decision.change is not None:
            at = _ms(decision.at)
            text = _change_text(decision.change, outcomes.get(decision.at))
            yield Annotation(at, at, _tags(service, decision, "change"), text)


def _phases(service: str, decisions: Sequence[Decision]) -> Iterator[Annotation]:
    """One mark per unbroken phase; one that goes on ends at the newest decision."""
    first: Decision | None = None
    for decision in decisions:
        if first is not None and decision.phase != first.phase:
            yield _phase(service, first, decision.at)
            first = None
        if first is None and decision.phase in _UNUSUAL:
            first = decision
    if first is not None:
        yield _phase(service, first, decisions[-1].at)


def _phase(service: str, first: Decision, end: float) -> Annotation:
    text = f"{first.phase}: {first.reason}"
    return Annotation(_ms(first.at), _ms(end), _tags(service, first, "phase"), text)


def _change_text(change: LimitsChange, outcome: ChangeOutcome | None) -> str:
    text = (
        f"batch {change.from_batch_size} → {change.to_batch_size}, "
        f"tokens {change.from_token_budget} → {change.to_token_budget}: {change.reason}"
    )
    if outcome is None or outcome.step_ms is None:
        return text
    step = outcome.step_ms
    return (
        f"{text}. Then a step took {step.measured:.1f} ms, {step.predicted:.1f} ms were predicted"
    )


def _tags(service: str, decision: Decision, kind: str) -> tuple[str, ...]:
    return ("paceline", kind, service, decision.pod, decision.phase, decision.binding)


def _ms(unix_s: float) -> int:
    return round(unix_s * 1e3)
