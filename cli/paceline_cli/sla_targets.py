"""The declared targets beside what was measured, at the quantile that the objective asks for."""

from paceline_tuner.service_report import MeasuredLatency, Quantiles
from paceline_tuner.service_spec import SLA


def missed_targets(sla: SLA, seen: MeasuredLatency) -> list[str]:
    """Say each target that was not met, or not measured."""
    quantile = seen.promised.name
    return [
        f"{name} {quantile} {'was not measured' if value is None else f'{value:,.0f} ms'},"
        f" target {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is None or value > target
    ]


def targets(sla: SLA, seen: MeasuredLatency) -> list[tuple[str, float, float | None]]:
    """Return name, target and the measured quantile of each target that is declared."""
    rows = all_targets(sla, seen.promised)
    return [(name, target, value) for name, target, value in rows if target is not None]


def all_targets(sla: SLA, seen: Quantiles) -> list[tuple[str, float | None, float | None]]:
    """Return the same of every latency; end to end only where it is declared or measured."""
    rows = [
        ("TTFT", sla.ttft_p99_ms, seen.ttft_ms),
        ("TPOT", sla.tpot_p99_ms, seen.tpot_ms),
        ("ITL", sla.itl_p99_ms, seen.itl_ms),
    ]
    if sla.e2e_p99_ms is not None or seen.e2e_ms is not None:
        rows.append(("E2E", sla.e2e_p99_ms, seen.e2e_ms))
    return rows
