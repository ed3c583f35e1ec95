"""The run's result: a table for people, JSON, and the flood as a plot."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from chaos.streams import Answer
from overload.asking import Asked, Outcome
from overload.scenes import Scene
from overload.served import TTFT_S
from paceline_cli.traffic.record import percentile


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that was seen."""

    machine: str
    answers: Sequence[Answer]
    scenes: Sequence[Scene]
    capacity_rps: float
    flood: Scene

    def outcome(self, asked: Asked) -> Outcome:
        """Judge one request."""
        return asked.outcome(self.answers[asked.prompt])

    def is_good(self, asked: Asked) -> bool:
        """Whether it was whole and its first token in time."""
        in_time = asked.ttft_s is not None and asked.ttft_s <= TTFT_S
        return in_time and self.outcome(asked) is Outcome.WHOLE

    def good_rps(self, scene: Scene) -> float:
        """Requests a second that were whole and in time."""
        until = scene.began_at + scene.seconds
        good = sum(self.is_good(one) for one in scene.asked if one.ended_at <= until)
        return good / scene.seconds


def record(run: Run) -> dict[str, Any]:
    """Return all figures."""
    return {
        "machine": run.machine,
        "capacity_rps": run.capacity_rps,
        "scenes": [_figures(run, scene) for scene in run.scenes],
    }


def table(run: Run) -> str:
    """Return the page."""
    return "\n".join(_page(run)) + "\n"


def _page(run: Run) -> Iterator[str]:
    yield "# More than a pod can serve"
    yield ""
    yield f"{run.machine}. Capacity: {run.capacity_rps:.2f} requests a second."
    yield ""
    columns = [str(outcome) for outcome in Outcome]
    yield f"| scene | seconds | {' | '.join(columns)} | good/s | TTFT p50, p99 | ITL p99 | left |"
    yield "|" + "---|" * (len(columns) + 6)
    for scene in run.scenes:
        found = _figures(run, scene)
        counts = " | ".join(f"{found['outcomes'][name]:,}" for name in columns)
        yield (
            f"| {scene.name} | {scene.seconds:.0f} | {counts} | {_rate(found['good_rps'])}"
            f" | {_ms(found['ttft_p50_ms'])}, {_ms(found['ttft_p99_ms'])}"
            f" | {_ms(found['itl_p99_ms'])} | {scene.left or 'nothing'} |"
        )
    yield ""
    for scene in run.scenes:
        for note in scene.notes:
            yield f"* {scene.name}: {note}."
    flood = _figures(run, run.flood)
    yield (
        f"* Goodput of the flood: {flood['good_rps'] / run.capacity_rps:.0%} of the capacity;"
        f" memory of the engine {_range([one.engine_mib for one in run.flood.samples])} MiB,"
        f" of the sidecar {_range([one.sidecar_mib for one in run.flood.samples])} MiB,"
        " from its first to its last ten seconds."
    )


def _figures(run: Run, scene: Scene) -> dict[str, Any]:
    outcomes = Counter(run.outcome(one) for one in scene.asked)
    first = [1e3 * one.ttft_s for one in scene.asked if one.ttft_s is not None]
    gaps = [
        1e3 * (after - before)
        for one in scene.asked
        for before, after in zip(one.token_ats, one.token_ats[1:], strict=False)
    ]
    return {
        "name": scene.name,
        "seconds": scene.seconds,
        "outcomes": {str(outcome): outcomes[outcome] for outcome in Outcome},
        "good_rps": None if scene.is_interleaved else run.good_rps(scene),
        "ttft_p50_ms": percentile(first, 0.5) if first else None,
        "ttft_p99_ms": percentile(first, 0.99) if first else None,
        "itl_p99_ms": percentile(gaps, 0.99) if gaps else None,
        "notes": list(scene.notes),
        "left": scene.left,
    }


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _range(values: Sequence[float]) -> str:
    first, last = values[:10], values[-10:]
    return f"{max(first, default=0.0):.0f} to {max(last, default=0.0):.0f}"
