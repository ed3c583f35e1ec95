"""PodState: what one decision leaves to the next, for one pod."""

import math
from dataclasses import dataclass, field

from paceline_tuner.audit import Audit
from paceline_tuner.burn_window import BurnWindow
from paceline_tuner.condition import Obstacle
from paceline_tuner.demand import ASSUMED, Demand
from paceline_tuner.drift import STEADY, Drift
from paceline_tuner.outcome import PendingOutcome
from paceline_tuner.service_report import LimitsChange, Phase
from paceline_tuner.service_spec import SLA, Policy
from paceline_tuner.slowdown import Slowdown
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.warm_start_entry import WarmStartEntry

_REVERSALS_COUNT_S = 600.0
_MAX_REVERSALS = 6


@dataclass(frozen=True, slots=True)
class PodState:
    """Frozen: a decision returns the next one. `*_at` and `*_until` are the pod's clock."""

    instance: str = ""
    at: float = -math.inf
    """When the last decision was made."""
    sla: SLA | None = None
    policy: Policy | None = None
    was_valid: bool = False
    """The last decision could trust the step model."""
    demand: Demand = ASSUMED
    proposals: tuple[TunedLimits, ...] = ()
    """The newest proposals, oldest first; limits are raised only to the minimum of them."""
    changed_at: float = 0.0
    was_raised: bool = False
    """The last change raised a limit."""
    reversals: tuple[float, ...] = ()
    """When a raise followed a cut, or a cut a raise."""
    transition_until: float = 0.0
    is_drifted: bool = False
    """This transition begins now, by a change of load or device: no new limits are called for."""
    backoff_until: float = 0.0
    trim: float = 1.0
    """κ: what feedback takes off the step target, and slowly gives back."""
    trimmed_at: float = 0.0
    obstacle: Obstacle = ""
    """Seen by the last decision."""
    obstacle_times: int = 0
    """Decisions in a row that saw one."""
    obstacle_at: float = -math.inf
    """When one was last seen."""
    feasible_since: float | None = None
    unattainable: Obstacle = ""
    """Believed, until the SLA has been attainable for long enough."""
    audit: Audit = field(default_factory=lambda: Audit(since=0.0))
    phase: Phase = "ColdStart"
    has_started: bool = False
    """A starting point has been sent to this engine."""
    started: WarmStartEntry | None = None
    """The remembered limits that it began with, until they are proven, missed or left."""
    last_change: LimitsChange | None = None
    """The last change that the pod acknowledged."""
    drift: Drift = STEADY
    slowdown: Slowdown = field(default_factory=Slowdown)
    burn: BurnWindow = field(default_factory=BurnWindow)
    pending: PendingOutcome | None = None
    """The last change, until its outcome is known."""

    @property
    def believes_floor(self) -> bool:
        """No limits keep the token target: it is not what limits are made for any more."""
        return self.unattainable == "TPOTFloor"

    def is_swinging(self, now: float) -> bool:
        """The limits went back and forth too often."""
        recent = [at for at in self.reversals if now - at < _REVERSALS_COUNT_S]
        return len(recent) > _MAX_REVERSALS
