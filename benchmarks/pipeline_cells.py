"""How the tables of the pipelines write times and counts. Pure."""

from collections.abc import Iterable, Sequence

from paceline_cli.bench.cells import estimate_cell, quantile_cell
from paceline_cli.bench.intervals import draws
from paceline_cli.bench.measures import latency_of

LEGEND = (
    "Milliseconds, in brackets 95 % intervals, open where too few values lie above;"
    " of fewer than 100 values a p99 is the maximum, and marked max."
)


def quantile(times_ms: Sequence[float], of: float) -> str:
    """Write a quantile as `paceline bench` does: a maximum of few values is marked max."""
    values = [[ms] for ms in times_ms]
    return quantile_cell(latency_of("", values, draws(len(values))).at(of))


def mean(times_ms: Sequence[float]) -> str:
    """Write a mean with its interval."""
    return estimate_cell(draws(len(times_ms)).mean(times_ms))


def share(are: Iterable[bool]) -> str:
    """Format how many of them are true."""
    all_of = list(are)
    return f"{sum(all_of)} of {len(all_of)}"
