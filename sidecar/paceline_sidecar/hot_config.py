"""What the operator changes without a restart and the sidecar itself obeys."""

from dataclasses import dataclass

from paceline_wire.limits import Lane


@dataclass(frozen=True, slots=True)
class Sla:
    """Targets in milliseconds; None where none is declared."""

    ttft_p99_ms: float | None = None
    tpot_p99_ms: float | None = None
    itl_p99_ms: float | None = None
    objective: float = 0.99
    """Share of the offered requests that must meet every target."""


@dataclass(frozen=True, slots=True)
class AdmissionPolicy:
    """The bounds of the queue, and what is refused."""

    max_queued_requests: int = 1024
    max_queued_tokens: int | None = None
    reject_at: float = 0.8
    """Refuse from this share of the two caps on."""
    request_timeout_s: float = 60.0
    """A request, its waiting included, may take this long."""
    shed_hopeless: bool = True
    """Refuse requests that can no longer meet the TTFT target."""
    max_items_per_request: int = 1024
    """Prompts, choices or pairs of one request."""


@dataclass(frozen=True, slots=True)
class HotConfig:
    """Swapped whole with every accepted change."""

    sla: Sla = Sla()
    admission: AdmissionPolicy = AdmissionPolicy()
    config_hash: str = ""
    batch_sla: Sla | None = None
    """The batch lane's targets; None judges it by `sla` too."""

    def sla_of(self, lane: Lane) -> Sla:
        """Return the targets of one lane's requests."""
        if lane == "batch" and self.batch_sla is not None:
            return self.batch_sla
        return self.sla
