"""Sends spans in the background: bounded, counted, and never waited for by a request."""

from collections.abc import Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from paceline_sidecar.tracing.settings import TracingSettings
from paceline_sidecar.tracing.trace import SpanCounts


class _CountingExporter(SpanExporter):
    """Runs in the SDK's thread: the only one that sends, and the only one that writes here."""

    def __init__(self, inner: SpanExporter, counts: SpanCounts) -> None:
        self._inner = inner
        self._counts = counts
        self.taken = 0
        """Spans that have left the queue."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.taken += len(spans)
        result = self._inner.export(spans)
        if result is SpanExportResult.SUCCESS:
            self._counts.exported += len(spans)
        else:
            self._counts.failed += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class BoundedProcessor(SpanProcessor):
    """The SDK's batches behind a bound of our own: the SDK's drops the oldest and counts none."""

    def __init__(self, settings: TracingSettings, counts: SpanCounts) -> None:
        self._counts = counts
        self._most = settings.bsp_max_queue_size
        self._exporter = _CountingExporter(OTLPSpanExporter(), counts)
        self._given = 0
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=settings.bsp_max_queue_size,
            schedule_delay_millis=settings.bsp_schedule_delay,
            max_export_batch_size=settings.bsp_max_export_batch_size,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do: a span is worth sending when it has ended."""

    def on_end(self, span: ReadableSpan) -> None:
        """Keep a span for the next message, or drop it; called on the event loop alone."""
        if self._given - self._exporter.taken >= self._most:
            self._counts.dropped += 1
            return
        self._given += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """Send what waits; a collector that does not answer takes the exporter's timeout."""
        self._batches.shutdown()  # type: ignore[no-untyped-call] # the SDK's own

    def give_up(self) -> None:
        """Let go of what is being sent."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Send what waits, now."""
        return self._batches.force_flush(timeout_millis)
