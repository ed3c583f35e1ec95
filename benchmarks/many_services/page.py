"""The benchmark's result, as a table for people and as JSON. Pure."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline_cli.traffic.record import percentile

_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Scene:
    """One scene's figures."""

    name: str
    seconds: float
    took_s: list[float]
    """How long each service took, ascending; empty where none was waited for."""
    cpu_s: float
    rss_mib: float
    peak_mib: float
    oldest_s: float
    """The greatest age of the queue's oldest key."""
    calls: dict[str, int]
    """By verb and resource, most first."""

    @property
    def num_calls(self) -> int:
        """Of all kinds."""
        return sum(self.calls.values())

    @property
    def calls_a_minute(self) -> float:
        """Of all kinds."""
        return self.num_calls / self.seconds * 60

    @property
    def cores(self) -> float:
        """Processor time over time."""
        return self.cpu_s / self.seconds

    def described(self) -> dict[str, Any]:
        """Return what JSON holds: percentiles instead of each service's time."""
        found = asdict(self) | {"took_s": self._percentiles()}
        return {
            key: round(value, 3) if isinstance(value, float) else value
            for key, value in found.items()
        }

    def line(self) -> str:
        """Return its row of the table."""
        took = self._percentiles()
        cells = (
            self.name,
            f"{self.seconds:.1f} s",
            *(f"{took[which]:.2f} s" if took else "" for which in ("p50", "p99", "max")),
            f"{self.cpu_s:.1f} s ({self.cores:.2f})",
            f"{self.rss_mib:.0f} MiB ({self.peak_mib:.0f})",
            f"{self.num_calls:,} ({self.calls_a_minute:,.0f} a minute)",
            f"{self.oldest_s:.1f} s",
        )
        return f"| {' | '.join(cells)} |"

    def _percentiles(self) -> dict[str, float]:
        if not self.took_s:
            return {}
        found = {f"p{which}": percentile(self.took_s, which / 100) or 0.0 for which in (50, 99)}
        return found | {"max": self.took_s[-1]}


def page(scenes: Sequence[Scene], count: int) -> str:
    """Render the page."""
    return "\n".join(_lines(scenes, count)) + "\n"


def _lines(scenes: Sequence[Scene], count: int) -> Iterator[str]:
    yield f"# {count:,} services"
    yield ""
    yield (
        "| scene | length | p50 | p99 | last | processor (cores) | memory (peak) | requests "
        "| oldest in the queue |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for scene in scenes:
        yield scene.line()
    yield ""
    for scene in scenes:
        yield f"## Requests: {scene.name}"
        yield ""
        yield "| verb and resource | count | a service |"
        yield "|---|---|---|"
        for what, number in list(scene.calls.items())[:_SHOWN]:
            yield f"| {what} | {number:,} | {number / count:.2f} |"
        yield ""
    yield f"Made by `make many-services`, on {os.cpu_count()} cores."
