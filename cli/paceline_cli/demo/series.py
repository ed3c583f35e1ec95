"""What the demo's main plot draws: the moving p99s and the limits over time, small enough to keep.

A committed series redraws the picture without another run.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from paceline_cli.demo.demo_run import DemoRun, rolling_p99
from paceline_cli.traffic.client_span import P99
from paceline_cli.traffic.record import percentile

WINDOW_S: Final = 10.0
_STEP_S: Final = 1.0
_DIGITS: Final = 3


class LatencySeries(msgspec.Struct, frozen=True):
    """One latency that has a target, in milliseconds."""

    name: str
    """In plain words."""
    target_ms: float
    p99_ms: list[float | None]
    """Of the last `WINDOW_S` at each of the times; None where nothing was measured."""
    before_ms: float | None
    """The p99 of all that the client saw under the declared limits."""
    after_ms: float | None
    """The p99 of the span that the verdict is about."""


class DemoSeries(msgspec.Struct, frozen=True):
    """One run; all times are seconds since traffic began."""

    machine: str
    at_s: list[float]
    border_s: float
    """When the tuner was let loose."""
    end_s: float
    latencies: list[LatencySeries]
    limits_at_s: list[float]
    batch_size: list[int | None]
    token_budget: list[int | None]


def series_of(run: DemoRun) -> DemoSeries:
    """Reduce a run to what is drawn of it."""
    count = int((run.end_at - run.start_at) / _STEP_S + 1e-9)
    return DemoSeries(
        machine=run.machine,
        at_s=[_STEP_S * (place + 1) for place in range(count)],
        border_s=_rounded(run.border_at - run.start_at),
        end_s=_rounded(run.end_at - run.start_at),
        latencies=list(_latencies(run)),
        limits_at_s=[_rounded(sample.at - run.start_at) for sample in run.samples],
        batch_size=[sample.batch_size for sample in run.samples],
        token_budget=[sample.token_budget for sample in run.samples],
    )


def _latencies(run: DemoRun) -> Iterator[LatencySeries]:
    """Yield the latencies that have a target: gaps first, first tokens last."""
    answers, before, after = run.records, run.before(), run.after()
    gaps = [
        (at, ms)
        for each in answers
        for at, ms in zip(each.token_ats[1:], each.itls_ms, strict=True)
    ]
    means = [(each.token_ats[-1], ms) for each in answers if (ms := each.tpot_ms) is not None]
    firsts = [(each.token_ats[0], ms) for each in answers if (ms := each.ttft_ms) is not None]
    sla = run.sla
    for name, target_ms, points, old, new in (
        ("gap between tokens", sla.itl_p99_ms, gaps, before.itl_ms, after.itl_ms),
        ("time per output token", sla.tpot_p99_ms, means, before.tpot_ms, after.tpot_ms),
        ("time to first token", sla.ttft_p99_ms, firsts, before.ttft_ms, after.ttft_ms),
    ):
        if target_ms is None:
            continue
        rolling = rolling_p99(
            points, start=run.start_at, end=run.end_at, window_s=WINDOW_S, step_s=_STEP_S
        )
        yield LatencySeries(
            name=name,
            target_ms=target_ms,
            p99_ms=[None if ms is None else _rounded(ms) for _, ms in rolling],
            before_ms=percentile(old, P99),
            after_ms=percentile(new, P99),
        )


def _rounded(value: float) -> float:
    return round(value, _DIGITS)
