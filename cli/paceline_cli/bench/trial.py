"""Offers planned requests to a server and measures them: what run, sweep and compare share."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import httpx

from paceline_cli.bench.measures import Measures, measure
from paceline_cli.traffic.client_health import ClientHealth, judge, watched_loop
from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.open_loop import Asking, drive_closed, drive_open
from paceline_cli.traffic.record import ClientRecord
from paceline_tuner.service_spec import SLA

OnRecord = Callable[[ClientRecord], None]


@dataclass(frozen=True, slots=True)
class Stretch:
    """How long a trial is. Warm-up is offered the same traffic and left out of all figures."""

    seconds: float
    warmup_s: float = 0.0
    concurrency: int | None = None
    """Closed loop: so many at once, and the first `warmup_requests` of them are left out."""
    warmup_requests: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """One stretch of traffic and what the client saw of it."""

    measures: Measures
    client: ClientHealth
    records: tuple[ClientRecord, ...]
    """Warm-up included, in order of their planned times."""
    start_at: float
    """Where measuring began, client's monotonic seconds."""
    end_at: float
    num_warmup: int


async def offer(
    client: httpx.AsyncClient,
    requests: Sequence[PlannedRequest],
    asking: Asking,
    stretch: Stretch,
    sla: SLA,
    *,
    on_record: OnRecord = lambda _: None,
) -> Trial:
    """Send all of them, wait for their ends, and measure what came after the warm-up."""
    records: list[ClientRecord] = []

    def keep(record: ClientRecord) -> None:
        records.append(record)
        on_record(record)

    async with watched_loop() as lag:
        began_at = time.monotonic()
        if stretch.concurrency is None:
            await drive_open(client, requests, asking, keep)
        else:
            await drive_closed(client, requests, asking, keep, concurrency=stretch.concurrency)
    records.sort(key=lambda record: record.planned_at)
    start_at, end_at = _measured(stretch, records, began_at)
    # Reading a long run takes seconds of processor: the loop is not to wait for it.
    is_closed_loop = stretch.concurrency is not None
    measures = await asyncio.to_thread(
        measure, records, start_at, end_at, sla, is_closed_loop=is_closed_loop
    )
    return Trial(
        measures=measures,
        client=judge(lag.seen, records, start_at),
        records=tuple(records),
        start_at=start_at,
        end_at=end_at,
        num_warmup=sum(record.planned_at < start_at for record in records),
    )


def _measured(
    stretch: Stretch, records: Sequence[ClientRecord], began_at: float
) -> tuple[float, float]:
    """The measured time: of a closed loop, while it was full."""
    if stretch.concurrency is None:
        start_at = began_at + stretch.warmup_s
        return start_at, start_at + stretch.seconds
    if not records:
        return began_at, began_at + 1.0
    first = min(stretch.warmup_requests, len(records) - 1)
    end_at = records[-1].planned_at
    return records[first].planned_at, max(end_at, records[first].planned_at + 1e-6)


def warmed_up(stretch: Stretch, num_warmup: int) -> str:
    """Say what was left out."""
    if stretch.concurrency is not None:
        return f"The first {num_warmup} requests were warm-up and are in no figure."
    return (
        f"The first {stretch.warmup_s:.3g} s were warm-up ({num_warmup} requests of the same"
        " traffic) and are in no figure."
    )
