"""`paceline bench check`: what a run missed, by more than the noise of its own intervals. Pure."""

import math
from collections.abc import Iterator
from typing import Final

from paceline_cli.bench.cells import number
from paceline_cli.bench.document import RunResult
from paceline_cli.bench.intervals import Estimate
from paceline_cli.bench.measures import SHARES, Measures, Quantile, label
from paceline_cli.bench.run_report import target_ms
from paceline_cli.errors import BadInputError
from paceline_tuner.service_spec import SLA

_COMPARED: Final = (0.5, 0.99)
"""Shares of each latency that are held against a baseline: more would find more by chance."""


def check(result: RunResult, baseline: RunResult | None, sla: SLA) -> list[str]:
    """List what was missed, one sentence each. Raises BadInputError where nothing can be judged."""
    if result.measures.offered == 0:
        raise BadInputError("the run offered no request: there is nothing to judge")
    if baseline is None and sla == SLA():
        raise BadInputError("neither targets nor --baseline: there is nothing to judge by")
    misses = list(missed_targets(result.measures, sla, is_own=sla == result.sla))
    if baseline is not None:
        _refuse_other_traffic(result, baseline)
        misses += worse_than(result.measures, baseline.measures)
    return misses


def missed_targets(measures: Measures, sla: SLA, *, is_own: bool = True) -> Iterator[str]:
    """Say each target that even the favourable end of its interval misses.

    Attainment is judged only of the targets that the run was measured with.
    """
    attained = measures.attainment
    if is_own and attained.high is not None and attained.high < sla.objective:
        yield (
            f"attainment is {_share(attained.value)} of all offered, at most"
            f" {_share(attained.high)}; the objective is {_share(sla.objective)}."
        )
    if sla.objective not in SHARES:
        return  # no quantile of it was kept, and attainment has said it
    for latency in measures.latencies:
        target = target_ms(sla, latency.name)
        if target is None or (latency.name == "TTFT" and sla.ttft_by_prompt_tokens):
            continue
        quantile = latency.at(sla.objective)
        if quantile.ms.low is not None and quantile.ms.low > target:
            yield (
                f"{latency.name} {_named(quantile)} is {_ms(quantile.ms.value)}, at least"
                f" {_ms(quantile.ms.low)}; the target is {_ms(target)}."
            )


def worse_than(measures: Measures, baseline: Measures) -> list[str]:
    """Say each figure whose interval lies wholly on the worse side of the baseline's."""
    more_is_better = (
        ("attainment", measures.attainment, baseline.attainment, 100.0, " %"),
        ("goodput", measures.goodput_rps, baseline.goodput_rps, 1.0, " requests/s"),
        (
            "goodput",
            measures.goodput_tokens_per_s,
            baseline.goodput_tokens_per_s,
            1.0,
            " output tokens/s",
        ),
        (
            "throughput",
            measures.output_tokens_per_s,
            baseline.output_tokens_per_s,
            1.0,
            " output tokens/s",
        ),
    )
    said = [
        f"{name} is {_interval(now, scale)}{unit}; the baseline's was"
        f" {_interval(before, scale)}{unit}."
        for name, now, before, scale, unit in more_is_better
        if now.high is not None and before.low is not None and now.high < before.low
    ]
    for now, before in zip(measures.latencies, baseline.latencies, strict=True):
        for share in _COMPARED:
            new, old = now.at(share), before.at(share)
            if new.ms.low is None or old.ms.high is None or not old.has_bound:
                continue
            if new.ms.low > old.ms.high:
                said.append(
                    f"{now.name} {_named(new)} is {_interval(new.ms)} ms; the baseline's was"
                    f" {_interval(old.ms)} ms."
                )
    return said


def undecided(measures: Measures, sla: SLA) -> list[str]:
    """Say each target that the run had too few requests to judge: not missed, and not shown."""
    said = []
    for latency in measures.latencies:
        target = target_ms(sla, latency.name)
        if target is None or sla.objective not in SHARES:
            continue
        quantile = latency.at(sla.objective)
        low, high = quantile.ms.low, quantile.ms.high if quantile.has_bound else math.inf
        if low is not None and high is not None and low <= target < high:
            said.append(
                f"{latency.name} {label(quantile.share)}: the target of {_ms(target)} lies within"
                f" the noise of {quantile.count} values; more requests would decide."
            )
    return said


def _refuse_other_traffic(result: RunResult, baseline: RunResult) -> None:
    for name in ("traffic", "seed"):
        now, before = getattr(result, name), getattr(baseline, name)
        if now != before:
            raise BadInputError(
                f"the baseline had another {name}, so nothing can be compared:"
                f" {before!r} then, {now!r} now"
            )


def _named(quantile: Quantile) -> str:
    return f"{label(quantile.share)} (a maximum)" if quantile.is_max else label(quantile.share)


def _interval(estimate: Estimate, scale: float = 1.0) -> str:
    ends = (estimate.value, estimate.low, estimate.high)
    most = max((abs(end * scale) for end in ends if end is not None), default=0.0)
    digits = 0 if most >= 100 else 1 if most >= 10 else 2  # noqa: PLR2004 - three digits
    value, low, high = ("-" if end is None else number(end * scale, digits) for end in ends)
    return f"{value} ({low}-{high})"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _ms(value: float | None) -> str:
    if value is None or math.isinf(value):
        return "infinite, as requests had no answer"
    return f"{value:,.0f} ms"
