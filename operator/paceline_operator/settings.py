"""The operator's settings, read once at start from `PACELINE_OPERATOR_*` (docs/processes.md)."""

from typing import Annotated, Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from paceline_operator import __version__


class OperatorSettings(BaseSettings):
    """Every field has a default that suits the chart's Deployment.

    The docstring of a field is its row of docs/processes.md, and links from there.
    """

    model_config = SettingsConfigDict(env_prefix="PACELINE_OPERATOR_", frozen=True)

    engine_image: str = f"paceline/engine:{__version__}"
    """Image of the engine, for services that name none themselves."""
    sidecar_image: str = f"paceline/sidecar:{__version__}"
    """Image of the sidecar, for services that name none themselves."""
    watch_namespaces: Annotated[tuple[str, ...], NoDecode] = ()
    """Namespaces, separated by commas; empty is every namespace, which needs a ClusterRole."""
    namespace: str = "default"
    """Where the operator runs: home of its Lease, source of traffic to port 8001."""
    pod_name: str = "operator"
    """Holder of the Lease; must differ between replicas."""
    pod_ip: str = ""
    """Address at which other replicas reach this one; without it, this one shares no shards."""
    lease_name: str = "paceline-operator"
    """Lease of the replica that leads. Its two Secrets, the key and the token of `/decisions`, are
    named after it, and so are the Leases of the tuner's processes."""
    host: str = "0.0.0.0"  # noqa: S104 - probes and Prometheus come from outside the pod
    """Address that the port is opened at."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8080
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 takes a free one."""
    workers: Annotated[int, Field(ge=1, le=64)] = 16
    """Services reconciled at the same time."""
    writes_per_second: Annotated[float, Field(ge=1.0, le=10_000.0)] = 200.0
    """Most writes of children, status and events; what a spec asks for goes first."""
    tuner_processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Shards of the tuner; 1 is tuned in the operator's own process, by the replica that leads.

    More have a process each beside that of a replica, and replicas have as many as each other. A
    shard has the services whose uid falls to it.
    """
    resync_s: Annotated[float, Field(ge=1.0, le=3600.0)] = 60.0
    """How often each service is looked at even though nothing was seen to change.

    Two a second at most: with a thousand services, every 500 s.
    """
    watch_probe_s: Annotated[float, Field(ge=1.0, le=300.0)] = 15.0
    """How often what the watch knows is compared with a list.

    What it has missed for eight times this ends the process's leadership and its liveness.
    """
    status_interval_s: Annotated[float, Field(ge=0.0, le=3600.0)] = 30.0
    """Numbers alone are written to status no more often than this.

    Seven services a second at most: with a thousand, every 143 s. Metrics have the newest.
    """
    log_level: Literal["debug", "info", "warning"] = "info"
    """`debug`, `info` or `warning`."""

    @property
    def address(self) -> str:
        """The URL at which other replicas reach this one; empty where they cannot."""
        host = f"[{self.pod_ip}]" if ":" in self.pod_ip else self.pod_ip
        return f"http://{host}:{self.port}" if host else ""

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value
