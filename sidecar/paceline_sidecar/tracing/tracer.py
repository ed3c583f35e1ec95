"""Makes spans of requests; imported only where the environment asks for them."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from paceline_sidecar import __version__
from paceline_sidecar.errors import InvalidRequest, Unauthorized
from paceline_sidecar.exchange import outcome_of
from paceline_sidecar.tracing import names
from paceline_sidecar.tracing.export import BoundedProcessor
from paceline_sidecar.tracing.names import Attribute
from paceline_sidecar.tracing.settings import TracingSettings
from paceline_sidecar.tracing.trace import (
    MAX_CHOICES,
    SpanCounts,
    Trace,
    TracedChoice,
    error_type,
)

_FAREWELL_S = 1.0
"""For what waits to be sent when the process leaves."""
_UNNAMED = "unknown_service"
_SERVER_ERROR = 500

Value = str | int | float | bool | Sequence[str]


class Tracer:
    """A `Tracing` that sends by OTLP/HTTP."""

    def __init__(
        self,
        settings: TracingSettings,
        *,
        service_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._counts = SpanCounts()
        self._processor = BoundedProcessor(settings, self._counts)
        # The sampler is the environment's (OTEL_TRACES_SAMPLER); by default a caller decides.
        self._provider = TracerProvider(resource=_resource(service_name), shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer("paceline", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._clock = clock

    @property
    def counts(self) -> SpanCounts:
        """What became of the spans."""
        return self._counts

    def begin(self, name: str, headers: Mapping[str, str] | None, *, at: float) -> Trace:
        """Begin a trace, or go on with the caller's."""
        # Wall clocks are set now and then: all times of a request are counted from one look.
        zero_ns = time.time_ns() - round(self._clock() * 1e9)
        above = Context() if headers is None else self._propagator.extract(headers, Context())
        span = self._tracer.start_span(
            name,
            context=above,
            kind=api.SpanKind.INTERNAL if headers is None else api.SpanKind.SERVER,
            start_time=_ns(zero_ns, at),
        )
        seen = span.get_span_context()
        header = f"00-{seen.trace_id:032x}-{seen.span_id:016x}-{seen.trace_flags:02x}"
        return Trace(name, at, header, span.is_recording(), partial(self._send, span, zero_ns))

    async def close(self) -> None:
        """Send what waits, as far as a second allows: a dead collector delays no exit."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._processor.shutdown()
            with suppress(RuntimeError):  # the loop may have closed: nobody waited as long
                loop.call_soon_threadsafe(sent.set)

        # A daemon: nothing waits for it when the process ends.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        try:
            async with asyncio.timeout(_FAREWELL_S):
                await sent.wait()
        except TimeoutError:
            self._processor.give_up()

    def _send(self, root: api.Span, zero_ns: int, trace: Trace, now: float) -> None:
        """Make the spans of a request that is over."""
        if not trace.is_recorded:
            return
        above = api.set_span_in_context(root, Context())

        def child(name: str, start: float, end: float) -> api.Span:
            span = self._tracer.start_span(name, context=above, start_time=_ns(zero_ns, start))
            ends.append((span, _ns(zero_ns, max(start, end))))
            return span

        ends: list[tuple[api.Span, int]] = []
        for choice in trace.choices:
            if choice.index >= MAX_CHOICES:
                continue
            _choice_spans(child, choice, zero_ns)
        if trace.is_stream and trace.answer_at is not None:
            child(names.STREAM, trace.answer_at, now)
        for span, at_ns in ends:
            span.end(at_ns)
        _describe(root, trace)
        root.end(_ns(zero_ns, now))


def _choice_spans(
    child: Callable[[str, float, float], api.Span], choice: TracedChoice, zero_ns: int
) -> None:
    """Make the spans of one choice, as far as it came."""
    record = choice.record
    arrived_at, ended_at = record.arrived_at, record.finished_at
    own: dict[Attribute, Value | None] = {names.CHOICE: choice.index, names.OUTCOME: record.outcome}
    scheduled_at = _after(arrived_at, record.queue_ms)
    first_at = _after(arrived_at, record.ttft_ms)

    queue = child(names.QUEUE, arrived_at, ended_at if scheduled_at is None else scheduled_at)
    _set(queue, own)
    if choice.handed_over_at is not None:
        queue.add_event(names.HANDED_OVER, timestamp=_ns(zero_ns, choice.handed_over_at))
    if scheduled_at is None:
        return
    prefill = child(names.PREFILL, scheduled_at, ended_at if first_at is None else first_at)
    tokens: dict[Attribute, Value | None] = {
        names.INPUT_TOKENS: record.prompt_tokens,
        names.CACHED_TOKENS: record.cached_tokens,
    }
    _set(prefill, own | tokens)
    if first_at is None:
        return
    decode = child(names.DECODE, first_at, ended_at)
    _set(
        decode,
        own
        | {
            names.OUTPUT_TOKENS: record.output_tokens,
            names.FINISH: _finishes([choice]),
            names.TPOT: record.tpot_ms,
            names.ITL_MAX: record.itl_max_ms,
        },
    )


def _describe(root: api.Span, trace: Trace) -> None:
    """Say of the whole request what it asked for, what it got and how it ended."""
    kind, _, path = trace.name.rpartition(" ")
    is_http = kind == "POST"
    found: dict[Attribute, Value | None] = {
        names.OPERATION: names.operation_of(path),
        names.PROVIDER: "paceline",
        names.BATCH_ID: trace.batch_id or None,
    }
    if is_http:
        found |= {
            names.METHOD: "POST",
            names.ROUTE: path,
            names.STATUS: trace.status,
            names.IS_STREAM: trace.is_stream,
            names.REQUEST_ID: trace.request_id,
        }
    if trace.job is not None:
        found |= {
            names.MODEL: trace.job.model,
            names.LANE: trace.job.lane,
            names.MAX_TOKENS: trace.job.max_tokens or None,
            names.TEMPERATURE: trace.job.temperature,
            names.NUM_CHOICES: trace.job.num_choices if trace.job.num_choices > 1 else None,
            names.EPOCH: trace.job.epoch,
        }
    found |= _usage(trace) | _end(trace)
    _set(root, found)
    outcome = found[names.OUTCOME]
    if (trace.status or 0) >= _SERVER_ERROR or outcome in {"failed", "timeout"}:
        root.set_status(api.StatusCode.ERROR)


def _usage(trace: Trace) -> dict[Attribute, Value | None]:
    records = [choice.record for choice in trace.choices]
    if not records:
        return {}
    prompts = [record for record in records if record.num_choices]
    ttft_ms = min((each.ttft_ms for each in records if each.ttft_ms is not None), default=None)
    found: dict[Attribute, Value | None] = {
        names.INPUT_TOKENS: sum(record.prompt_tokens for record in prompts),
        names.CACHED_TOKENS: sum(record.cached_tokens for record in prompts),
        names.OUTPUT_TOKENS: sum(record.output_tokens for record in records),
        names.FINISH: _finishes(trace.choices),
        names.TTFT: ttft_ms,
    }
    if trace.is_stream and ttft_ms is not None:
        found[names.FIRST_CHUNK] = ttft_ms / 1e3
    return found


def _end(trace: Trace) -> dict[Attribute, Value | None]:
    if trace.error is None:
        return {names.OUTCOME: "ok"}
    is_invalid = isinstance(trace.error, InvalidRequest | Unauthorized)
    outcome = "invalid" if is_invalid else outcome_of(trace.error)
    return {names.OUTCOME: outcome, names.ERROR: error_type(trace.error)}


def _finishes(choices: Sequence[TracedChoice]) -> list[str] | None:
    return [each.record.finish_reason for each in choices if each.record.finish_reason] or None


def _set(span: api.Span, values: Mapping[Attribute, Value | None]) -> None:
    span.set_attributes({each.name: value for each, value in values.items() if value is not None})


def _after(start: float, milliseconds: float | None) -> float | None:
    return None if milliseconds is None else start + milliseconds / 1e3


def _ns(zero_ns: int, at: float) -> int:
    return zero_ns + round(at * 1e9)


def _resource(service_name: str) -> Resource:
    """Describe this process; what the environment says goes before what we would."""
    own = Resource({"service.version": __version__, "service.instance.id": socket.gethostname()})
    told = Resource.create()
    if str(told.attributes[SERVICE_NAME]).startswith(_UNNAMED):
        return own.merge(told).merge(Resource({SERVICE_NAME: service_name}))
    return own.merge(told)
