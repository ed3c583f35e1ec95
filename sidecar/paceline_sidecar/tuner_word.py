"""What the tuner said last of this pod: of use for as long as the lease that it came with."""

from dataclasses import dataclass

from paceline_sidecar.backend import EngineView


@dataclass(frozen=True, slots=True)
class TunerWord:
    """The tuner's own view of the pod, in its words. Shown to people; nothing is decided by it."""

    phase: str
    verdict: str
    binding: str
    """What bounds the limits, as the tuner sees it."""
    at: float
    """When it came, by the clock that leases end by."""
    instance: str
    """The engine that it was said of."""


class HeardTuner:
    """Keeps the newest word."""

    def __init__(self) -> None:
        self._word: TunerWord | None = None

    def renewed(self, word: TunerWord | None) -> None:
        """Take what came with a change or a renewal: one without a word leaves none."""
        self._word = word

    def word(self, view: EngineView, *, now: float) -> TunerWord | None:
        """Return the newest word; None once its lease or its engine has ended."""
        word, limits = self._word, view.limits
        if word is None or limits is None or word.instance != view.instance:
            return None
        ends_at = limits.lease_expires_at
        return word if ends_at is not None and now < ends_at else None
