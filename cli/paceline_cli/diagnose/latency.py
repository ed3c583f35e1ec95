"""Where a request's time goes: before its first token, between tokens, after the last."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline_cli.diagnose.engine_time import EngineTime
from paceline_tuner.telemetry import RequestRecord
from paceline_tuner.window import Evidence

_SLOWEST = 0.05
"""The requests that a p99 is made of, and enough of them for a mean."""
_WORTH_TELLING_MS = 1.0  # of a client


@dataclass(frozen=True, slots=True)
class SpanPart:
    """One cause of waiting. Milliseconds of one request."""

    name: str
    mean_ms: float
    slow_ms: float
    """Mean over the slowest twentieth in that span."""


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a request's latency, and what it consists of."""

    name: str
    parts: tuple[SpanPart, ...]

    @property
    def mean_ms(self) -> float:
        """The whole span, on average."""
        return sum(part.mean_ms for part in self.parts)

    @property
    def slow_ms(self) -> float:
        """The whole span of the slowest requests."""
        return sum(part.slow_ms for part in self.parts)

    @property
    def largest(self) -> SpanPart | None:
        """What the slowest waited for most; None where there is nothing to wait for."""
        worst = max(self.parts, key=lambda part: part.slow_ms, default=None)
        return worst if worst is not None and worst.slow_ms > 0 else None


def spans(evidence: Evidence, time: EngineTime) -> tuple[Span, ...]:
    """Share the latency of the requests that were answered; empty without any."""
    served = [r for r in evidence.requests if r.outcome == "ok" and r.ttft_ms is not None]
    if not served:
        return ()
    return tuple(
        span
        for span in (_first_token(served), _per_token(served, time), _client(served))
        if span.parts
    )


def _first_token(served: Sequence[RequestRecord]) -> Span:
    slow = _slowest(served, _ttft_ms)
    queue, prefill = (
        SpanPart(name, _mean(served, get), _mean(slow, get))
        for name, get in (("queue", _queue_ms), ("prefill", _prefill_ms))
    )
    return Span("to the first token", (queue, prefill))


def _per_token(served: Sequence[RequestRecord], time: EngineTime) -> Span:
    """Each gap is one step, or several around a preemption: steps are shared by what they did."""
    pacing = [r for r in served if r.tpot_ms is not None]
    waited = time.of_decodes.total + time.between_decodes_ms
    if not pacing or waited <= 0:
        return Span("between tokens", ())
    parts = time.of_decodes
    again_ms = parts.prefill * time.recomputed_share
    shares = (
        ("decode", parts.fixed + parts.decode + parts.kv + parts.draft),
        ("prompts of others", parts.prefill - again_ms),
        ("recompute after pre-emption", again_ms),
        ("host", parts.host + time.between_decodes_ms),
    )
    mean_ms = _mean(pacing, _tpot_ms)
    slow_ms = _mean(_slowest(pacing, _tpot_ms), _tpot_ms)
    # Decoding itself takes the same for all; what the slow ones waited longer was the rest.
    own_ms = mean_ms * shares[0][1] / waited
    others = waited - shares[0][1]
    rest_ms = max(0.0, slow_ms - own_ms)
    slow = [own_ms] + [rest_ms * share / others if others > 0 else 0.0 for _, share in shares[1:]]
    if others <= 0:
        slow[0] = slow_ms
    return Span(
        "between tokens",
        tuple(
            SpanPart(name, mean_ms * share / waited, of_slow)
            for (name, share), of_slow in zip(shares, slow, strict=True)
            if share > 0
        ),
    )


def _client(served: Sequence[RequestRecord]) -> Span:
    """From the engine's last token until the answer was taken: a client that reads slowly."""
    slow = _slowest(served, _client_ms)
    part = SpanPart("client", _mean(served, _client_ms), _mean(slow, _client_ms))
    return Span("after the last token", (part,) if part.slow_ms > _WORTH_TELLING_MS else ())


def _ttft_ms(record: RequestRecord) -> float:
    return record.ttft_ms or 0.0


def _queue_ms(record: RequestRecord) -> float:
    return record.queue_ms or 0.0


def _prefill_ms(record: RequestRecord) -> float:
    return max(0.0, _ttft_ms(record) - _queue_ms(record))


def _tpot_ms(record: RequestRecord) -> float:
    return record.tpot_ms or 0.0


def _client_ms(record: RequestRecord) -> float:
    whole_ms = (record.finished_at - record.arrived_at) * 1e3
    decode_ms = _tpot_ms(record) * max(record.output_tokens - 1, 0)
    return max(0.0, whole_ms - _ttft_ms(record) - decode_ms)


def _slowest(
    records: Sequence[RequestRecord], by: Callable[[RequestRecord], float]
) -> Sequence[RequestRecord]:
    count = max(1, round(len(records) * _SLOWEST))
    return sorted(records, key=by)[-count:]


def _mean(records: Sequence[RequestRecord], by: Callable[[RequestRecord], float]) -> float:
    return sum(map(by, records)) / len(records)
