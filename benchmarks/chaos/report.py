"""The run's result, as a table for people and as JSON. Pure."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from chaos.audit import Findings
from chaos.streams import Answer, Kill, Outcome, Stream, judge
from paceline_cli.traffic.record import percentile

_NOT_CUT = (Outcome.WHOLE, Outcome.FAILED, Outcome.MIXED)


@dataclass(frozen=True, slots=True)
class Event:
    """One fault and what followed, in seconds of the clients' clock."""

    kind: str
    victim: str
    at: float
    calm_at: float | None
    """None: it was not calm when the benchmark gave up."""
    waited_for: str
    """The conditions that kept it from being calm, the longest first."""
    kill: Kill | None

    @property
    def to_calm_s(self) -> float | None:
        """From the fault's beginning, its own length included."""
        return None if self.calm_at is None else self.calm_at - self.at

    def holds(self, stream: Stream) -> bool:
        """Whether the stream ended while this was going on."""
        return self.at <= stream.ended_at and (
            self.calm_at is None or stream.ended_at <= self.calm_at
        )


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that was seen."""

    seed: int
    began_at: float
    events: Sequence[Event]
    streams: Sequence[Stream]
    answers: Sequence[Answer]
    """The text that each prompt gave on the quiet service."""
    findings: Findings

    @property
    def judged(self) -> list[tuple[Stream, Outcome]]:
        """Each request, with what it counts as."""
        kills = [event.kill for event in self.events if event.kill is not None]
        return [
            (stream, judge(stream, self.answers[stream.prompt], kills)) for stream in self.streams
        ]

    @property
    def to_calm_s(self) -> list[float]:
        """The times to calm after faults that the cluster got over."""
        return [event.to_calm_s for event in self.events if event.to_calm_s is not None]

    @property
    def is_good(self) -> bool:
        """Whether nothing happened that must not."""
        outcomes = {outcome for _, outcome in self.judged}
        return (
            not outcomes & {Outcome.FAILED, Outcome.MIXED}
            and not self.findings.by_two
            and len(self.to_calm_s) == len(self.events)
        )


def record(run: Run) -> dict[str, Any]:
    """Return the whole as JSON has it; times count from the beginning of the run."""
    counts = Counter(outcome for _, outcome in run.judged)
    return {
        "seed": run.seed,
        "minutes": round((max(each.ended_at for each in run.streams) - run.began_at) / 60, 1),
        "requests": {outcome.value: counts[outcome] for outcome in Outcome},
        "requests_retried": sum(stream.num_retries > 0 for stream in run.streams),
        "writes": run.findings.num_writes,
        "leaders": run.findings.num_leaders,
        "writes_by_two_leaders": [asdict(write) for write in run.findings.by_two],
        "writes_at_a_handover": [asdict(write) for write in run.findings.at_handover],
        "to_calm_p50_s": percentile(run.to_calm_s, 0.5),
        "to_calm_max_s": max(run.to_calm_s, default=None),
        "events": [_event(run, event) for event in run.events],
        "bad": [_bad(run, stream, outcome) for stream, outcome in run.judged if _is_bad(outcome)],
    }


def table(run: Run) -> str:
    """Return a Markdown page: each event, then the sums."""
    counts = Counter(outcome for _, outcome in run.judged)
    lines = [
        "| at | fault | victim | calm after | mostly waited for | whole | failed | mixed | cut |",
        "|---|---|---|---|---|---|---|---|---|",
        *_rows(run),
        "",
        "| What | Figure |",
        "|---|---|",
        f"| requests | {len(run.streams):,} |",
        *(f"| {_title(outcome)} | {counts[outcome]:,} |" for outcome in Outcome),
        f"| answered after a retry | {sum(stream.num_retries > 0 for stream in run.streams):,} |",
        f"| writes by two leaders | {len(run.findings.by_two)} of {run.findings.num_writes:,} |",
        f"| writes under way at a handover | {len(run.findings.at_handover)} |",
        f"| pods that led | {run.findings.num_leaders} |",
        f"| time to calm, p50 | {_seconds(percentile(run.to_calm_s, 0.5))} |",
        f"| time to calm, max | {_seconds(max(run.to_calm_s, default=None))} |",
    ]
    return "\n".join(lines)


def _rows(run: Run) -> Iterator[str]:
    for event in run.events:
        counts = Counter(outcome for stream, outcome in run.judged if event.holds(stream))
        cells = (
            f"{event.at - run.began_at:.0f} s",
            event.kind,
            event.victim,
            _seconds(event.to_calm_s),
            event.waited_for or "-",
            *(str(counts[outcome]) for outcome in (*_NOT_CUT, Outcome.CUT)),
        )
        yield f"| {' | '.join(cells)} |"


def _title(outcome: Outcome) -> str:
    return "requests failed" if outcome is Outcome.FAILED else f"streams {outcome.value}"


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def _is_bad(outcome: Outcome) -> bool:
    return outcome in {Outcome.FAILED, Outcome.MIXED, Outcome.CUT}


def _event(run: Run, event: Event) -> dict[str, Any]:
    return {
        "at_s": round(event.at - run.began_at, 1),
        "fault": event.kind,
        "victim": event.victim,
        "to_calm_s": None if event.to_calm_s is None else round(event.to_calm_s, 1),
        "waited_for": event.waited_for,
    }


def _bad(run: Run, stream: Stream, outcome: Outcome) -> dict[str, Any]:
    during = [event.kind for event in run.events if event.holds(stream)]
    return {
        "outcome": outcome.value,
        "during": during[0] if during else "quiet",
        "began_at_s": round(stream.began_at - run.began_at, 2),
        "ended_at_s": round(stream.ended_at - run.began_at, 2),
        "prompt": stream.prompt,
        "has_begun": stream.first_byte_at is not None,
        "error": stream.error,
        "text": stream.text,
    }
