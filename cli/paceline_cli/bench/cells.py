"""Figures with their intervals in words, for tables on a terminal and in a page. Pure."""

import math

from paceline_cli.bench.intervals import Estimate, least_count, least_count_of_bound
from paceline_cli.bench.measures import SHARES, Latency, Measures, Quantile, label

RANKS = ", ".join(f"{label(share)} needs {least_count(share):,}" for share in SHARES)
BOUNDS = ", ".join(f"{label(share)} {least_count_of_bound(share):,}" for share in SHARES)
LEGEND = (
    "In brackets: 95 % intervals, by a bootstrap over blocks of neighbouring requests."
    f" Of fewer values than a rank needs ({RANKS}) the maximum is shown and marked max;"
    f" where too few lie above for an upper bound ({BOUNDS} values at least) the interval is open."
    " A request that was refused, failed or had no end in time counts as infinitely late;"
    " means are of the answered ones."
)


def estimate_cell(estimate: Estimate, digits: int = 0, *, scale: float = 1.0) -> str:
    """Write a figure and its interval: `412 (380-460)`."""
    if estimate.value is None:
        return "-"
    text = number(estimate.value * scale, digits)
    if estimate.low is None or estimate.high is None:
        return text
    return (
        f"{text} ({number(estimate.low * scale, digits)}-{number(estimate.high * scale, digits)})"
    )


def quantile_cell(quantile: Quantile) -> str:
    """Write a quantile; a maximum says so, and an interval without an upper end is open."""
    ms = quantile.ms
    if ms.value is None:
        return "-"
    if ms.value == math.inf:
        return "no answer"
    digits = 0 if ms.value >= 10 else 1  # noqa: PLR2004 - two digits at least
    if quantile.is_max:
        return f"max {number(ms.value, digits)}"
    if ms.low is None or ms.high is None:
        return number(ms.value, digits)
    high = number(ms.high, digits) if quantile.has_bound else ""
    return f"{number(ms.value, digits)} ({number(ms.low, digits)}-{high})"


def short_quantile(quantile: Quantile) -> str:
    """The same without its interval."""
    if quantile.ms.value is None:
        return "-"
    if quantile.ms.value == math.inf:
        return "no answer"
    return f"{'max ' if quantile.is_max else ''}{quantile.ms.value:,.0f}"


def lagged(client_lagged: bool) -> str:
    """Say where the client lagged; nothing where it kept up."""
    return ", the client lagged" if client_lagged else ""


def latency_cells(latency: Latency) -> list[str]:
    """Mean, the quantiles of SHARES and the maximum."""
    most = "-" if latency.max_ms is None else number(latency.max_ms, 0)
    return [
        estimate_cell(latency.mean_ms),
        *map(quantile_cell, latency.quantiles),
        most,
    ]


def headline_rows(measures: Measures) -> list[tuple[str, str]]:
    """Return the first rows of a report: attainment, goodput, and how much was offered."""
    ended = ", ".join(f"{count} {name}" for name, count in sorted(measures.outcomes.items()))
    rows = [("offered", f"{measures.offered} requests: {ended or 'none'}")]
    if measures.cancelled:
        rows.append(("left as planned", f"{measures.cancelled}, neither offered nor missed"))
    if measures.attainment.value is not None:
        rows += [
            ("attainment", f"{estimate_cell(measures.attainment, 1, scale=100)} % of all offered"),
            ("goodput", f"{estimate_cell(measures.goodput_rps, 2)} requests/s"),
            ("", f"{estimate_cell(measures.goodput_tokens_per_s, 1)} output tokens/s"),
        ]
    rows += [
        ("throughput", f"{estimate_cell(measures.requests_per_s, 2)} requests/s"),
        ("", f"{estimate_cell(measures.output_tokens_per_s, 1)} output tokens/s"),
        (
            "lengths",
            (
                f"{estimate_cell(Estimate(measures.prompt_tokens.value))} prompt and"
                f" {estimate_cell(Estimate(measures.output_tokens.value))} output tokens on average"
            ),
        ),
    ]
    return rows


def number(value: float, digits: int) -> str:
    """Write a number; infinity is said."""
    return "no answer" if math.isinf(value) else f"{value:,.{digits}f}"
