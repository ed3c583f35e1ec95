"""The declared targets beside what was measured, at the quantile that the objective asks for."""

import math
from collections.abc import Iterator

from paceline_tuner.service_report import MeasuredLatency
from paceline_tuner.service_spec import SLA, prompts_name


def missed_targets(sla: SLA, seen: MeasuredLatency) -> list[str]:
    """Say each target that was not met, or not measured."""
    quantile = seen.promised.name
    return [
        f"{name} {quantile} {_said(value)}, target {target:,.0f} ms"
        for name, target, value in targets(sla, seen)
        if value is None or value > target
    ]


def _said(value: float | None) -> str:
    if value is None:
        return "was not measured"
    return "is of a request without an answer" if math.isinf(value) else f"{value:,.0f} ms"


def targets(sla: SLA, seen: MeasuredLatency) -> list[tuple[str, float, float | None]]:
    """Return name, target and the measured quantile of each target that is declared."""
    rows = all_targets(sla, seen)
    return [(name, target, value) for name, target, value in rows if target is not None]


def all_targets(sla: SLA, seen: MeasuredLatency) -> list[tuple[str, float | None, float | None]]:
    """Return the same of every latency; end to end only where it is declared or measured."""
    promised = seen.promised
    rows = [
        *_first_tokens(sla, seen),
        ("TPOT", sla.tpot_p99_ms, promised.tpot_ms),
        ("ITL", sla.itl_p99_ms, promised.itl_ms),
    ]
    if sla.e2e_p99_ms is not None or promised.e2e_ms is not None:
        rows.append(("E2E", sla.e2e_p99_ms, promised.e2e_ms))
    return rows


def first_token_name(least: int, up_to: int | None) -> str:
    """Name the first tokens of one class of prompts: `TTFT 1-2000`."""
    return f"TTFT {prompts_name(least, up_to)}"


def _first_tokens(
    sla: SLA, seen: MeasuredLatency
) -> Iterator[tuple[str, float | None, float | None]]:
    if not sla.ttft_by_prompt_tokens:
        yield "TTFT", sla.ttft_p99_ms, seen.promised.ttft_ms
        return
    measured = {(each.least, each.up_to): each.ttft_ms for each in seen.by_prompt_tokens}
    for least, each in zip(sla.shortest_prompts, sla.ttft_by_prompt_tokens, strict=True):
        value = measured.get((least, each.up_to))
        yield first_token_name(least, each.up_to), each.ttft_p99_ms, value
