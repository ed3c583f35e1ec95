"""Begins to trace where the environment asks for it, and imports OpenTelemetry then alone."""

import logging

from paceline_sidecar.tracing.settings import TracingSettings
from paceline_sidecar.tracing.trace import Tracing

_log = logging.getLogger(__name__)


def start_tracing(settings: TracingSettings, *, service_name: str) -> Tracing | None:
    """Return what traces requests; None where nobody asks, or where the packages are missing."""
    if not settings.is_asked:
        return None
    try:
        from paceline_sidecar.tracing.tracer import Tracer  # noqa: PLC0415 - 20 MB, when asked
    except ImportError as error:
        _log.error("no traces are sent: %s is not installed", error.name)
        return None
    _log.info("traces are sent by OTLP/HTTP")
    return Tracer(settings, service_name=service_name)
