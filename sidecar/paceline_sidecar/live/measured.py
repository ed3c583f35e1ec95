"""Each latency beside its target, over the newest requests: as the tuner measures them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from paceline_sidecar.hot_config import HotConfig, Sla
from paceline_sidecar.metrics.finished_request import FinishedRequest, miss_reason
from paceline_sidecar.metrics.ledger import Ledger
from paceline_sidecar.metrics.sketch import quantile_ms

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Row:
    """One latency; milliseconds, None where there is no target or no sample."""

    name: str
    target_ms: float | None
    seen_ms: float | None
    """At the quantile that the objective asks for."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the requests of the window had."""

    rows: tuple[Row, ...]
    samples: int
    """Offered requests."""
    attainment: float | None
    """Share of them that met every target; None without any."""


def measure(ledger: Ledger, config: HotConfig, now: float) -> Measured:
    """Measure what is held against `sla`: the batch lane is not where it has targets of its own."""
    begin = now - WINDOW_S
    lanes = {
        lane: counts
        for lane, counts in ledger.lanes.items()
        if lane == "interactive" or config.batch_sla is None
    }
    ended = takewhile(lambda record: record.finished_at >= begin, ledger.requests.newest())
    requests = [record for record in ended if record.lane in lanes]
    slices = [
        part for each in lanes.values() for part in each.gaps.slices() if part.start_at >= begin
    ]
    offered = [record for record in requests if record.outcome != "cancelled"]
    missed = sum(miss_reason(record, config.sla) is not None for record in offered)
    itl_ms = quantile_ms(slices, config.sla.objective)
    return Measured(
        rows=_rows(config.sla, requests, itl_ms),
        samples=len(offered),
        attainment=1 - missed / len(offered) if offered else None,
    )


def _rows(sla: Sla, requests: Sequence[FinishedRequest], itl_ms: float | None) -> tuple[Row, ...]:
    share = sla.objective
    rows = _first_tokens(sla, requests)
    rows.append(Row("TPOT", sla.tpot_p99_ms, _quantile([r.tpot_ms for r in requests], share)))
    rows.append(Row("ITL", sla.itl_p99_ms, itl_ms))
    if sla.e2e_p99_ms is not None:
        lasted = [record.e2e_ms for record in requests if record.outcome == "ok"]
        rows.append(Row("E2E", sla.e2e_p99_ms, _quantile(lasted, share)))
    return tuple(rows)


def _first_tokens(sla: Sla, requests: Sequence[FinishedRequest]) -> list[Row]:
    if not sla.ttft_by_prompt_tokens:
        values = [record.ttft_ms for record in requests]
        return [Row("TTFT", sla.ttft_p99_ms, _quantile(values, sla.objective))]
    rows, least = [], 1
    for each in sla.ttft_by_prompt_tokens:
        mine = [r.ttft_ms for r in requests if sla.class_of(r.prompt_tokens) == each]
        name = f"TTFT {least}-{each.up_to or ''}"
        rows.append(Row(name, each.ttft_p99_ms, _quantile(mine, sla.objective)))
        least = (each.up_to or 0) + 1
    return rows


def _quantile(values: Sequence[float | None], share: float) -> float | None:
    """Find the least value that a share of the known ones does not exceed."""
    known = sorted(value for value in values if value is not None)
    return known[math.ceil(share * len(known)) - 1] if known else None
