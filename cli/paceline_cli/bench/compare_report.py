"""The comparison's report: one HTML file that needs nothing else, and the same figures as JSON."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

from paceline_cli.bench.sweep_points import SHARES, ClientMeasures, Percentile, label, least_count
from paceline_cli.bench.sweep_report import figures
from paceline_cli.pages import rendered
from paceline_cli.place import Scheduling

_LATENCIES = ("TTFT", "TPOT", "E2E")


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """One scheduling: what clients saw, and what the engine computed for it."""

    scheduling: Scheduling
    measured: ClientMeasures
    padding_tokens: int
    """Computed only to fill batches up."""
    useful_tokens: int
    """Prompt tokens computed and tokens generated."""

    @property
    def padding_share(self) -> float:
        """Padding's share of all computed tokens."""
        return self.padding_tokens / max(1, self.padding_tokens + self.useful_tokens)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A whole run of `bench compare`."""

    model: str
    machine: str
    rate_rps: float
    cv: float
    seconds: float
    """Length of the arrivals under each scheduling."""
    found: tuple[SchedulingResult, ...]


def write_report(comparison: Comparison, folder: Path) -> Path:
    """Write `compare.html` and `compare.json` into the folder; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(as_json(comparison), encoding="utf-8")
    page = folder / "compare.html"
    page.write_text(render(comparison), encoding="utf-8")
    return page


def render(comparison: Comparison) -> str:
    """The page's text."""
    return rendered(
        "bench/compare.html.j2",
        comparison=comparison,
        names=_LATENCIES,
        shares=[label(share) for share in SHARES],
        rows=[(found, latency_cells(found.measured)) for found in comparison.found],
        ranks=", ".join(f"{label(share)} needs {least_count(share):,}" for share in SHARES),
    )


def as_json(comparison: Comparison) -> str:
    """Every figure; an infinite latency is the string `inf`, which JSON has no number for."""
    document = {
        "model": comparison.model,
        "machine": comparison.machine,
        "rate_rps": comparison.rate_rps,
        "cv": comparison.cv,
        "seconds": comparison.seconds,
        "schedulings": {
            found.scheduling: figures(found.measured)
            | {
                "padding_tokens": found.padding_tokens,
                "useful_tokens": found.useful_tokens,
                "padding_share": found.padding_share,
            }
            for found in comparison.found
        },
    }
    return json.dumps(document, indent=2, allow_nan=False)


def latency_cells(measured: ClientMeasures) -> dict[str, list[str]]:
    """P50, P99 and P99.9 by latency, in words; a maximum is marked `max`."""
    return {name: [_cell(value) for value in values] for name, values in measured.latencies()}


def _cell(value: Percentile) -> str:
    if value.ms is None:
        return "-"
    if value.ms == math.inf:
        return "no answer"
    return f"{'max ' if value.is_max else ''}{value.ms:,.0f}"
