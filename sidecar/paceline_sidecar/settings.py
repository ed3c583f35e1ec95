"""SidecarSettings: the sidecar's settings, read once at start (docs/processes.md)."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from paceline_wire import Pooling

# sockaddr_un.sun_path holds 108 bytes, the last one is zero.
_LONGEST_SOCKET_PATH = 107


class SidecarSettings(BaseSettings):
    """Every field is `PACELINE_SIDECAR_<NAME>`.

    The docstring of a field is its row of docs/processes.md, and links from there.
    """

    model_config = SettingsConfigDict(env_prefix="PACELINE_SIDECAR_", frozen=True)

    run_dir: Path = Path("/run/paceline")
    """Shared with the engine: its socket and the tokenizer's files."""
    host: str = "0.0.0.0"  # noqa: S104 - a pod serves on every address it has
    """Address that both ports are opened at."""
    port: int = Field(default=8000, ge=0, le=65535)
    """OpenAI API, `/health/*`, `/metrics`."""
    admin_port: int = Field(default=8001, ge=0, le=65535)
    """`/runtime/*`, [`/live`](live.md), `/health/*`, `/metrics`."""
    served_name: str | None = Field(default=None, min_length=1, max_length=253)
    """`model` in requests; others get 404."""
    runtime_token_file: Path | None = None
    """Bearer token of the runtime API."""
    runtime_config_file: Path | None = None
    """`runtime.json` of the ConfigMap `<name>-runtime`: a `PATCH` body without `epoch`, applied
    when the engine becomes ready."""
    api_keys_file: Path | None = None
    """Lines of `KEY` or `NAME: KEY`; the file is watched for changes."""
    tls_cert_file: Path | None = None
    """With a certificate port 8000 speaks TLS; replaced files serve the next handshake within 5
    seconds."""
    tls_key_file: Path | None = None
    """The certificate's key; each is refused without the other."""
    admin_tls: bool = False
    """Port 8001 speaks TLS, too, with the same certificate."""
    drain_s: float = Field(default=120.0, ge=0, le=86_400)
    """After SIGTERM: finish requests for this long, then leave."""
    lame_duck_s: float = Field(default=10.0, ge=0, le=3600)
    """At the beginning of that time new requests are still served, each with `Connection: close`:
    proxies and clients with open connections hear late that a pod leaves. After it they get 503
    with `Retry-After`."""
    docs: bool = True
    """`/openapi.json` and `/docs` on the public port (`api.docs`)."""
    vllm_metrics: bool = True
    """The `vllm:` family on `/metrics`, beside `paceline_*`."""
    load_report: bool = True
    """Answers of the OpenAI API carry
    [`endpoint-load-metrics`](gateways.md#what-a-pod-says-of-its-load) (ORCA)."""
    load_report_port: int | None = Field(default=None, ge=1, le=65535)
    """Gateways hear the same between answers, by gRPC on this port (ORCA's out-of-band reports);
    with the public port's certificate, where there is one."""
    write_timeout_s: float = Field(default=20.0, gt=0, le=3600)
    """On Linux: a client that takes nothing of its answer for this long has left, and its request
    ends."""
    header_timeout_s: float = Field(default=10.0, gt=0, le=3600)
    """A request's line and headers, and a TLS handshake, may take this long to arrive: 408."""
    body_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    """A body may take this long, and a second more for each 16 KiB of it that have come: 408."""
    keep_alive_s: int = Field(default=75, ge=1, le=3600)
    """An idle connection is closed then.

    Longer than the pools of common clients keep one: they close first, and nobody races.
    """
    max_header_bytes: int = Field(default=32 * 1024, ge=1024, le=1024**2)
    """A larger request line with its headers is refused with 431."""
    max_connections: int = Field(default=4096, ge=1, le=1_000_000)
    """Connections open at once on each port; one more gets 503."""
    max_connections_per_address: int | None = Field(default=None, ge=1, le=1_000_000)
    """Connections from one address at once; behind a proxy all come from one."""
    max_unread_bytes: int = Field(default=4 * 1024 * 1024, ge=64 * 1024, le=1024**3)
    """A client that leaves more of a stream unread is disconnected, and its request ends."""
    max_body_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, le=1024**3)
    """A larger request body is refused with 413."""
    batch_dir: Path | None = None
    """Files and batches, and the secret that callers' ids are made with; on a volume
    (`api.batches`) they survive a restart ([how](decisions/0058-batches-are-files.md))."""
    batch_max_file_bytes: int = Field(default=100 * 1024 * 1024, ge=1024, le=1024**3)
    """A larger upload is refused with 413."""
    batch_concurrency: int = Field(default=64, ge=1, le=4096)
    """Lines of batches that run or wait in memory at once, each of 1 MiB at most."""
    pooling: Pooling = "last"
    """An embedding is the state of a prompt's `last` token, or the `mean` over all tokens."""
    heartbeat_s: float = Field(default=8.0, gt=0, le=3600)
    """An engine that is silent for this long counts as stalled: what it was given fails with 503 or
    an error event, until it speaks again."""

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
