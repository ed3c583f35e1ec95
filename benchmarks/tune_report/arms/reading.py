"""What an outside rule reads from a pod's telemetry, and how it changes limits."""

from collections import deque
from dataclasses import dataclass

from paceline_tuner.latency_sketch import LatencySketch, p99
from paceline_tuner.pods import PodClient, PodError
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import RequestRecord, SketchSlice, Telemetry

WINDOW_S = 20.0


@dataclass(frozen=True, slots=True)
class Reading:
    """One pod over the last twenty seconds; milliseconds, tokens, None without samples."""

    batch: int
    budget: int
    running: int
    waiting: int
    epoch: int
    max_batch: int
    max_budget: int
    itl_p99_ms: float | None
    tpot_p99_ms: float | None
    ttft_p99_ms: float | None
    newest: tuple[RequestRecord, ...]
    """Ended since the last reading."""

    def is_slow(self, sla: SLA) -> bool:
        """A token target is missed at the 99th percentile."""
        pairs = ((self.itl_p99_ms, sla.itl_p99_ms), (self.tpot_p99_ms, sla.tpot_p99_ms))
        return any(
            seen is not None and wanted is not None and seen > wanted for seen, wanted in pairs
        )


class Reader:
    """Follows one pod."""

    def __init__(self) -> None:
        """Start without a reading."""
        self._since = 0
        self._requests: deque[RequestRecord] = deque()
        self._slices: dict[float, SketchSlice] = {}

    async def read(self, client: PodClient, pod: PodTarget) -> Reading | None:
        """Read what is new; None while the pod cannot be read."""
        try:
            answer = await client.get_telemetry(pod, self._since)
        except PodError:
            return None
        self._since = answer.next
        self._requests.extend(answer.requests)
        while self._requests and self._requests[0].finished_at < answer.now - WINDOW_S:
            self._requests.popleft()
        for piece in answer.sketches:
            if piece.metric == "itl_ms" and piece.lane == "interactive":
                self._slices[piece.start_at] = piece
        return self._reading(answer)

    def _reading(self, answer: Telemetry) -> Reading | None:
        if answer.limits is None or answer.load is None:
            return None
        recent = [s for at, s in self._slices.items() if at >= answer.now - WINDOW_S]
        held, capacity = answer.limits.requested, answer.limits.capacity
        tpots = [r.tpot_ms for r in self._requests if r.tpot_ms is not None]
        ttfts = [r.ttft_ms for r in self._requests if r.ttft_ms is not None]
        return Reading(
            batch=held.max_batch_size,
            budget=held.token_budget,
            running=answer.load.running,
            waiting=answer.load.waiting,
            epoch=answer.limits.epoch,
            max_batch=capacity.max_batch_size,
            max_budget=capacity.max_token_budget,
            itl_p99_ms=LatencySketch(recent).quantile(0.99),
            tpot_p99_ms=p99(tpots),
            ttft_p99_ms=p99(ttfts),
            newest=answer.requests,
        )


async def change(
    client: PodClient, pod: PodTarget, reading: Reading, batch: int, budget: int
) -> None:
    """Set both limits, within the pod's capacity, if either differs."""
    batch = max(1, min(batch, reading.max_batch))
    budget = max(batch, min(budget, reading.max_budget))
    epoch = reading.epoch
    body: dict[str, object] = {"epoch": epoch, "lease_s": 60.0}
    if (batch, budget) != (reading.batch, reading.budget):
        body |= {"max_batch_size": batch, "token_budget": budget, "epoch": epoch + 1}
    try:
        await client.patch_limits(pod, body)
    except PodError:
        return
