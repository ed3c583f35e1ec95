"""The tuner's last status of this pod, which holds for as long as the lease it came with."""

from dataclasses import dataclass

from paceline_sidecar.backend import EngineView


@dataclass(frozen=True, slots=True)
class TunerStatus:
    """The tuner's own view of the pod. It is shown to people; nothing is decided by it."""

    phase: str
    verdict: str
    binding: str
    """What bounds the limits, by the tuner's reckoning."""
    at: float
    """When it came, by the clock that leases end by."""
    instance: str
    """The engine that it was said of."""


class LastTunerStatus:
    """Keeps the newest status."""

    def __init__(self) -> None:
        self._status: TunerStatus | None = None

    def update(self, status: TunerStatus | None) -> None:
        """Take what came with a change or a renewal: one without a status leaves none."""
        self._status = status

    def status(self, view: EngineView, *, now: float) -> TunerStatus | None:
        """Return the newest status; None once its lease or its engine has ended."""
        status, limits = self._status, view.limits
        if status is None or limits is None or status.instance != view.instance:
            return None
        ends_at = limits.lease_expires_at
        return status if ends_at is not None and now < ends_at else None
