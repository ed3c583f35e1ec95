"""Decision: what was chosen for one pod, from what, and why. Kept, and shown by `explain`."""

from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from paceline_tuner.attainment import NOTHING, Counts
from paceline_tuner.condition import Obstacle
from paceline_tuner.outcome import NOT_PREDICTED, Prediction
from paceline_tuner.pod_state import PodState
from paceline_tuner.seeded_start import SeededStart
from paceline_tuner.service_report import (
    ChangeOutcome,
    LimitsChange,
    MeasuredLatency,
    Phase,
    Verdict,
)
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start_entry import WarmStartEntry

UNSEEN = MeasuredLatency(None, None, None, 0, None)

ReasonSubject = Literal["BatchSize", "Both", ""]
"""The limits that a reason explains; empty where it explains none, or nobody has said which."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One pod, one tick."""

    at: float
    """Unix seconds."""
    pod: str
    phase: Phase
    verdict: Verdict
    binding: str
    reason: str
    """In words, with the numbers that mattered."""
    current: TunedLimits | None
    """The limits that the pod reported."""
    wanted: TunedLimits | None
    """The proposal, before the guards."""
    chosen: TunedLimits | None
    """The limits that should hold now; equal to `current` when nothing changes."""
    applied: bool
    """The mode lets the tuner send `chosen`."""
    inputs: dict[str, float | int | str | bool | None] = field(default_factory=dict)
    prediction: Prediction = NOT_PREDICTED
    outcome: ChangeOutcome | None = None
    """What became of an earlier change, in the first decision that can tell."""
    obstacle: Obstacle = ""
    observed: MeasuredLatency = UNSEEN
    counts: Counts = NOTHING
    change: LimitsChange | None = None
    state: PodState = field(default_factory=PodState)
    """What was learned, whatever the pod answers."""
    acknowledged_state: PodState = field(default_factory=PodState)
    """The same once the pod has taken the change: the next decision begins from here."""
    is_proven: bool = False
    is_trusted: bool = False
    """The step model decided, not trial and error."""
    is_slow: bool = False
    """The device has been slower than usual for half a minute or more."""
    start: SeededStart | None = None
    """What a new engine begins with."""
    failed_start: WarmStartEntry | None = None
    """Remembered limits that this engine began with, and that missed its SLA."""
    reason_subject: ReasonSubject = ""
    """The limits that `reason` explains."""

    def refused(self) -> "Decision":
        """Drop what the pod did not take: the limits that held go on, under what was learned."""
        return replace(self, change=None, acknowledged_state=self.state)

    def as_dict(self) -> dict[str, object]:
        """Give plain values for people and JSON, without what only the next decision needs."""
        values = asdict(self)
        for name in ("state", "acknowledged_state", "counts", "start", "failed_start"):
            del values[name]
        return values
