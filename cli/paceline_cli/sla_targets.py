"""The declared targets beside what was measured."""

from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.service_spec import SLA


def missed_targets(sla: SLA, seen: MeasuredLatency) -> list[str]:
    """Say each target that was not met, or not measured."""
    return [
        f"{name} p99 {'was not measured' if value is None else f'{value:,.0f} ms'},"
        f" target {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is None or value > target
    ]


def targets(sla: SLA, seen: MeasuredLatency) -> list[tuple[str, float, float | None]]:
    """Return name, declared target and measured p99 of each target that is declared."""
    rows = [
        ("TTFT", sla.ttft_p99_ms, seen.ttft_p99_ms),
        ("TPOT", sla.tpot_p99_ms, seen.tpot_p99_ms),
        ("ITL", sla.itl_p99_ms, seen.itl_p99_ms),
    ]
    return [(name, target, value) for name, target, value in rows if target is not None]
