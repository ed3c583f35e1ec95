"""The standard variables of OpenTelemetry that decide whether spans are sent (docs/tracing.md)."""

from typing import Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_PREFIX = "OTEL_"
_PROTOCOL = "http/protobuf"


class TracingSettings(BaseSettings):
    """Every field is `OTEL_<NAME>`; the SDK itself reads the sampler, the resource and the rest."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_ignore_empty=True, frozen=True)

    sdk_disabled: str = "false"
    traces_exporter: str | None = None
    """`otlp` or `none`; by default `otlp` where an endpoint is named, else `none`."""
    exporter_otlp_endpoint: str | None = None
    exporter_otlp_traces_endpoint: str | None = None
    exporter_otlp_protocol: str | None = None
    exporter_otlp_traces_protocol: str | None = None
    bsp_max_queue_size: int = Field(default=2048, ge=1, le=1_000_000)
    """Spans that wait to be sent; more are dropped and counted."""
    bsp_max_export_batch_size: int = Field(default=128, ge=1, le=65_536)
    """Spans of one message. A quarter of the SDK's: to encode them holds the interpreter."""
    bsp_schedule_delay: int = Field(default=5000, ge=1, le=3_600_000)
    """Milliseconds between two messages."""

    @property
    def is_asked(self) -> bool:
        """Return whether spans are to be sent."""
        if self.sdk_disabled.strip().lower() == "true":
            return False
        if self.traces_exporter is None:
            return bool(self.exporter_otlp_endpoint or self.exporter_otlp_traces_endpoint)
        return self.traces_exporter.strip().lower() == "otlp"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.is_asked:
            return self
        protocol = self.exporter_otlp_traces_protocol or self.exporter_otlp_protocol or _PROTOCOL
        if protocol != _PROTOCOL:
            msg = f"OTEL_EXPORTER_OTLP_PROTOCOL: it must be {_PROTOCOL}, got {protocol}"
            raise ValueError(msg)
        if self.bsp_max_export_batch_size > self.bsp_max_queue_size:
            msg = (
                "OTEL_BSP_MAX_EXPORT_BATCH_SIZE: at most OTEL_BSP_MAX_QUEUE_SIZE "
                f"({self.bsp_max_queue_size}), got {self.bsp_max_export_batch_size}"
            )
            raise ValueError(msg)
        return self


def sentences(error: ValidationError) -> list[str]:
    """Name each wrong variable and its rule."""
    found = []
    for detail in error.errors(include_url=False):
        rule = detail["msg"].removeprefix("Value error, ")
        name = "_".join(str(part) for part in detail["loc"]).upper()
        found.append(f"{_PREFIX}{name}: {rule}" if name else rule)
    return found
