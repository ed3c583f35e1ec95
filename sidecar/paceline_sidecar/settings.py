"""SidecarSettings: the sidecar's settings, read once at start (docs/processes.md)."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline_wire import Pooling

# sockaddr_un.sun_path holds 108 bytes, the last one is zero.
_LONGEST_SOCKET_PATH = 107


class SidecarSettings(BaseSettings):
    """Every field is `PACELINE_SIDECAR_<NAME>`."""

    model_config = SettingsConfigDict(env_prefix="PACELINE_SIDECAR_", frozen=True)

    run_dir: Path = Path("/run/paceline")
    """Shared with the engine: its socket and the tokenizer's files."""
    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on every address it has
    port: int = Field(default=8000, ge=0, le=65535)
    """OpenAI API, health and metrics."""
    admin_port: int = Field(default=8001, ge=0, le=65535)
    """Runtime API, health and metrics."""
    served_name: str | None = Field(default=None, min_length=1, max_length=253)
    """`model` in requests; None takes the engine's own name."""
    runtime_token_file: Path | None = None
    """Bearer token of the runtime API, which is closed without one."""
    runtime_config_file: Path | None = None
    """A PATCH body without `epoch`, applied when the engine gets ready."""
    api_keys_file: Path | None = None
    """Lines of `KEY` or `NAME: KEY`, watched; None asks for no key."""
    tls_cert_file: Path | None = None
    tls_key_file: Path | None = None
    admin_tls: bool = False
    """Whether the admin port speaks TLS, too, with the same certificate."""
    drain_s: float = Field(default=120.0, ge=0, le=86_400)
    """After SIGTERM, running requests may take this long."""
    lame_duck_s: float = Field(default=10.0, ge=0, le=3600)
    """At the beginning of that time new requests are still taken: their senders do not know yet."""
    docs: bool = True
    """Serve `/openapi.json` and `/docs`."""
    vllm_metrics: bool = True
    """Expose the `vllm:` family beside `paceline_*`."""
    load_report: bool = True
    """Tell the load with every answer of the OpenAI API, as `endpoint-load-metrics` (ORCA)."""
    load_report_port: int | None = Field(default=None, ge=1, le=65535)
    """Tell it between answers, too, by gRPC (ORCA's out-of-band reports); None: nobody listens."""
    write_timeout_s: float = Field(default=20.0, gt=0, le=3600)
    """A client that takes nothing of its answer for this long has left."""
    header_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """A request's line and headers, and a TLS handshake, may take this long to arrive."""
    body_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """A body may take this long to arrive, plus a second for each 16 KiB received."""
    keep_alive_s: int = Field(default=75, ge=1, le=3600)
    """An idle connection is closed then.

    Longer than the pools of common clients keep one: they close first, and nobody races.
    """
    max_header_bytes: int = Field(default=32 * 1024, ge=1024, le=1024**2)
    """A larger request line with its headers is refused with 431."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)
    """Connections open at once on each port; one more gets 503."""
    max_connections_per_address: int | None = Field(default=None, ge=1, le=1_000_000)
    """Connections from one address at once; None is no limit, as behind a proxy."""
    max_unread_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024, le=1024**3)
    """A client that leaves more bytes of a stream unread is disconnected."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=1024**3)
    """A larger request body is refused with 413."""
    batch_dir: Path | None = None
    """Files and batches, and the secret that callers' ids are made with. None: a temporary folder
    that ends with the process."""
    batch_max_file_bytes: int = Field(default=100 * 1024 * 1024, ge=1024, le=1024**3)
    """A larger upload is refused with 413."""
    batch_concurrency: int = Field(default=64, ge=1, le=4096)
    """Lines of batches that run or wait at once; each may have 1 MiB."""
    pooling: Pooling = "last"
    """Which of a prompt's hidden states becomes its embedding."""
    heartbeat_s: float = Field(default=8.0, gt=0, le=3600)
    """An engine that is silent for this long is stalled: what it has been given fails with 503."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            msg = "tls_cert_file and tls_key_file go together: one of them is missing"
            raise ValueError(msg)
        if self.admin_tls and self.tls_cert_file is None:
            msg = "admin_tls needs tls_cert_file and tls_key_file"
            raise ValueError(msg)
        if len(str(self.socket_path).encode()) > _LONGEST_SOCKET_PATH:
            msg = f"run_dir is too long for a Unix socket: {self.socket_path}"
            raise ValueError(msg)
        return self

    @property
    def socket_path(self) -> Path:
        """Where the engine listens."""
        return self.run_dir / "engine.sock"
