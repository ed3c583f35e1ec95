"""What the page shows of this pod, now and over the last quarter of an hour."""

import asyncio
import logging
import math
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import takewhile
from typing import Final

import msgspec

from paceline_page.content import (
    Content,
    Help,
    History,
    Latency,
    Limits,
    Point,
    State,
    Work,
    histogram,
)
from paceline_sidecar.admission.rules import most_requests
from paceline_sidecar.live.advice import Snapshot, advise, bound
from paceline_sidecar.live.limit_log import LEASE_LOST, LimitLog, held
from paceline_sidecar.live.measured import WINDOW_S, Measured, measure
from paceline_sidecar.live.recent_counters import RecentCounters
from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.service import Service
from paceline_sidecar.tuner_status import LastTunerStatus, TunerStatus
from paceline_wire import EngineLoad, ModelInfo

_EVERY_S: Final = 5.0
_KEPT_POINTS: Final = 180
_SHOWN_EVERY_S: Final = 2.0
_RATE_S: Final = 10.0
_UNKNOWN: Final = "Nothing is known of the engine yet."
_NOTHING: Final = "Nothing stands out in this pod's own figures. "
_DIAGNOSE: Final = "paceline diagnose judges with the tuner's step model too, and says how much."

_log = logging.getLogger(__name__)


class LivePod:
    """Remembers a point every five seconds, and lays all out for who looks."""

    def __init__(
        self,
        service: Service,
        limit_log: LimitLog,
        tuner: LastTunerStatus,
        clock: Callable[[], float] = time.time,
        *,
        shown_every_s: float = _SHOWN_EVERY_S,
    ) -> None:
        """Tell times by `clock`, in Unix seconds."""
        self._service = service
        self._limit_log = limit_log
        self._tuner = tuner
        self._clock = clock
        self._shown_every_s = shown_every_s
        self._points: deque[Point] = deque(maxlen=_KEPT_POINTS)
        self._counters = RecentCounters()
        self._newest = b""
        self._newest_at = -math.inf

    async def remember(self) -> None:
        """Keep a point every five seconds, forever."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                self._points.append(self._point(self._measured()))
                if (heard := self._service.ledger.telemetry) is not None:
                    self._counters.add(heard)
            except Exception:  # noqa: BLE001 - requests are served on, whatever the page lacks
                _log.exception("a point of the live page is missing")

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield server-sent events, one content each, until this process refuses requests."""
        while not self._service.refusing:
            yield b"data: " + self._shown() + b"\n\n"
            await asyncio.sleep(self._shown_every_s)

    def _shown(self) -> bytes:
        """Return the content as JSON: the same to all who look at about the same time."""
        now = self._service.clock()
        if now - self._newest_at >= self._shown_every_s / 2:
            self._newest, self._newest_at = msgspec.json.encode(self.content()), now
        return self._newest

    def content(self) -> Content:
        """Lay out what is known now."""
        service, measured = self._service, self._measured()
        now, config = service.clock(), service.config
        points = (*self._points, self._point(measured))
        steps = takewhile(lambda step: step.at >= now - WINDOW_S, service.ledger.steps.newest())
        model, seen = service.backend.view.model, self._snapshot(measured)
        advice, note = _advice(seen)
        return Content(
            at=self._clock(),
            name=service.name or "Paceline",
            about=f"{model.name if model else 'no model yet'} · pod {socket.gethostname()}",
            state=_state(service),
            quantile=f"p{100 * config.sla.objective:g}",
            objective=config.sla.objective,
            window_s=WINDOW_S,
            attainment=measured.attainment,
            samples=measured.samples,
            latencies=tuple(
                Latency(
                    row.name,
                    row.target_ms,
                    row.seen_ms,
                    tuple(point.latencies.get(row.name) for point in points),
                )
                for row in measured.rows
            ),
            limits=self._limits(now, "" if seen is None else bound(seen)),
            work=self._work(),
            history=History.of(points),
            changes=self._limit_log.changes,
            histogram=histogram((step.decode, 1) for step in steps),
            advice=advice,
            advice_note=note,
            events=() if model is None else _how(model),
        )

    def _measured(self) -> Measured:
        service = self._service
        return measure(service.ledger, service.config, service.clock())

    def _point(self, measured: Measured) -> Point:
        heard, state = self._service.ledger.telemetry, self._service.backend.view.limits
        return Point(
            at=self._clock(),
            latencies={row.name: row.seen_ms for row in measured.rows},
            batch_size=None if state is None else held(state).max_batch_size,
            token_budget=None if state is None else held(state).token_budget,
            running=0 if heard is None else heard.load.running,
            waiting=0 if heard is None else heard.load.waiting,
        )

    def _snapshot(self, measured: Measured) -> Snapshot | None:
        """Put together what advice is judged by; None without an engine."""
        service = self._service
        heard, state = service.ledger.telemetry, service.backend.view.limits
        if heard is None or state is None:
            return None
        load, before = heard.load, self._counters.before(heard, WINDOW_S).load
        blocks = state.capacity.num_blocks
        return Snapshot(
            running=load.running,
            waiting=load.waiting,
            people_waiting=load.waiting_by_lane.get("interactive", 0),
            kv_share=load.kv_used_blocks / blocks if blocks else None,
            batch_size=state.effective.max_batch_size,
            queued=service.admission.queue.requests,
            queue_places=most_requests(service.config.admission),
            ended=sum(1 for _ in self._ended()),
            preempted=_preempted(load) - _preempted(before),
            prompt_tokens=load.prompt_tokens - before.prompt_tokens,
            output_tokens=load.output_tokens - before.output_tokens,
            padding_tokens=load.padding_tokens - before.padding_tokens,
            looked_up=load.prefix_queries - before.prefix_queries,
            found=load.prefix_hits - before.prefix_hits,
            is_late=any(
                row.target_ms is not None and (row.seen_ms or 0.0) > row.target_ms
                for row in measured.rows
            ),
        )

    def _limits(self, now: float, binding: str) -> Limits:
        state = self._service.backend.view.limits
        if state is None:
            return Limits()
        limits, expires_at = held(state), state.lease_expires_at
        status = self._tuner.status(self._service.backend.view, now=now)
        return Limits(
            batch_size=limits.max_batch_size,
            token_budget=limits.token_budget,
            step_target_ms=limits.step_target_ms,
            binding=binding,
            verdict="" if status is None else status.verdict,
            tuner="" if status is None else _said(status),
            tuner_age_s=None if status is None else now - status.at,
            reason=self._limit_log.reason(state.epoch),
            lease_s=None if expires_at is None else max(0.0, expires_at - now),
            error=LEASE_LOST if state.lease_lost else "",
        )

    def _work(self) -> Work:
        heard, state = self._service.ledger.telemetry, self._service.backend.view.limits
        if heard is None:
            return Work()
        load, output_tps, prompt_tps = heard.load, *self._rates()
        num_blocks = 0 if state is None else state.capacity.num_blocks
        return Work(
            running=load.running,
            waiting=load.waiting,
            oldest_wait_s=load.oldest_waiting_s,
            output_tps=output_tps,
            prompt_tps=prompt_tps,
            finished_rps=self._finished_rps(),
            kv_share=load.kv_used_blocks / num_blocks if num_blocks else None,
        )

    def _finished_rps(self) -> float:
        """Count the requests of the last minute that were served to their end, a second."""
        return sum(record.outcome == "ok" for record in self._ended()) / WINDOW_S

    def _ended(self) -> Iterator[FinishedRequest]:
        """Yield the requests that ended within the last minute, newest first."""
        begin = self._service.clock() - WINDOW_S
        newest = self._service.ledger.requests.newest()
        return takewhile(lambda record: record.finished_at >= begin, newest)

    def _rates(self) -> tuple[float | None, float | None]:
        """Reckon output and prompt tokens a second over about ten seconds."""
        heard = self._service.ledger.telemetry
        if heard is None:
            return None, None
        old = self._counters.before(heard, _RATE_S)
        passed_s = heard.at - old.at
        if passed_s <= 0:
            return None, None
        return (
            (heard.load.output_tokens - old.load.output_tokens) / passed_s,
            (heard.load.prompt_tokens - old.load.prompt_tokens) / passed_s,
        )


def _advice(seen: Snapshot | None) -> tuple[tuple[Help, ...], str]:
    """Return what would help, and what this leaves out."""
    if seen is None:
        return (), _UNKNOWN
    advice = advise(seen)
    return advice, _DIAGNOSE if advice else _NOTHING + _DIAGNOSE


def _said(status: TunerStatus) -> str:
    """Say the tuner's phase and what bounds the limits, where something does."""
    bound_by = f"bound by {status.binding}" if status.binding not in {"", "None"} else ""
    return ", ".join(part for part in (status.phase, bound_by) if part)


def _preempted(load: EngineLoad) -> int:
    """Count preemptions, without batch requests that gave way: that is what they are for."""
    return load.preemptions - load.displaced


def _how(model: ModelInfo) -> tuple[str, ...]:
    """Say how the engine computes."""
    because = f": {model.dtype_reason}" if model.dtype_reason else ""
    said = [f"computes in {model.dtype}{because}"]
    if model.cores:
        said.append(f"computes with {model.cores}")
    if model.ops:
        said.append(model.ops)
    return tuple(said)


def _state(service: Service) -> State:
    missing, view = service.missing(), service.backend.view
    if not missing:
        return State("serving", "serving")
    if view.loading is not None and view.phase == "loading":
        return State("loading", view.loading.stage, view.loading.fraction)
    return State("down", "; ".join(missing))
