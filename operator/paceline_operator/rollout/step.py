r"""Decide the next step on the way to new images. Pure.

    nothing -> Waiting -> Canary -> Rolling -> Done
                             \---------\----> RolledBack, until other images are wanted

Each phase stands in status before the children follow it, so any operator can go on from there.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from paceline_api.status import Images, RolloutPhase, RolloutStatus, RolloutVerdict
from paceline_api.units import timestamp
from paceline_tuner.service_report import ExperimentReport

_SLACK_S: Final = 60.0
"""Between the end of a comparison and the next look."""
_NOBODY: Final = "waits for a pod to compare with: replicas is 0"
_KEPT: Final = "the pods keep the previous images until other images are wanted"


@dataclass(frozen=True, slots=True)
class OldPods:
    """The pods of the service's own Deployment."""

    num_ready: int
    is_settled: bool
    """All of them have the Deployment's template."""
    has_new_images: bool
    """The Deployment's template has the wanted images."""
    trouble: str = ""
    """What stands in their way; empty where nothing does."""
    is_late: bool = False
    """The Deployment made no progress within startupSeconds."""


@dataclass(frozen=True, slots=True)
class CanaryPod:
    """The pod that tries the new images."""

    is_ready: bool
    trouble: str = ""
    """Why it will not serve; empty while it may."""


@dataclass(frozen=True, slots=True)
class Seen:
    """All that the next step depends on."""

    wanted: Images
    recorded: Images
    """The images that the pods have, or had before the rollout that is under way."""
    rollout: RolloutStatus | None
    """Where it stands, as status has it."""
    pods: OldPods
    now: datetime
    replicas: int = 1
    startup_s: float = 1800.0
    canary_s: float = 900.0
    has_surge: bool = True
    is_asked: bool = False
    """The spec names another engine's image."""
    is_cold: bool = False
    """The pod template changes in more than its images."""
    canary: CanaryPod | None = None
    """None until its Deployment is there."""
    trial: ExperimentReport | None = None
    """How its requests compare; None until they are."""
    ahead: str = ""
    """The service that is rolled now; empty where none is."""


@dataclass(frozen=True, slots=True)
class Step:
    """What status says from now on."""

    images: Images
    rollout: RolloutStatus | None
    is_at_once: bool = False
    """The wanted images go to all pods in this very reconcile, without a canary."""

    @property
    def is_rolling(self) -> bool:
        """Whether no other service may begin."""
        return is_rolling(self.rollout)


def is_rolling(rollout: RolloutStatus | None) -> bool:
    """Tell whether a service has its turn."""
    return rollout is not None and rollout.phase in {"Canary", "Rolling"}


def trial_name(rollout: RolloutStatus) -> str:
    """Name one attempt to compare these images."""
    return f"{rollout.images.engine} {rollout.images.sidecar} {rollout.since}"


def next_step(seen: Seen) -> Step:
    """Decide what comes next, from what is seen alone."""
    rollout = seen.rollout
    if seen.wanted == seen.recorded:
        is_history = rollout is not None and rollout.phase == "Done"
        return Step(seen.recorded, rollout if is_history else None)
    if rollout is None or rollout.images != seen.wanted or rollout.phase == "Done":
        return _at_once(seen) or _begun(replace(seen, rollout=None))
    if rollout.phase == "Waiting":
        return _begun(seen)
    if rollout.phase == "Canary":
        return _tried(seen, rollout)
    if rollout.phase == "Rolling":
        return _rolled(seen, rollout)
    return Step(seen.recorded, rollout)


def _at_once(seen: Seen) -> Step | None:
    """Let images that come with a cold change roll out with it at once, without a comparison.

    A difference could then not be attributed to the images.
    """
    if seen.is_asked and seen.is_cold:
        return Step(seen.wanted, None, is_at_once=True)
    return None


def _begun(seen: Seen) -> Step:
    pods = seen.pods
    is_broken = bool(pods.trouble) and not (pods.num_ready and pods.is_settled)
    if seen.replicas and is_broken and (seen.is_asked or _has_waited_long(seen)):
        # Nothing that serves is at risk, and the images may be the cure.
        return Step(seen.wanted, None, is_at_once=True)
    if seen.replicas == 0:
        return _waiting(seen, _NOBODY)
    if not (pods.num_ready and pods.is_settled) or seen.is_cold:
        return _waiting(seen, "waits until the pods serve as they are declared")
    if seen.ahead:
        return _waiting(seen, f"waits for the rollout of {seen.ahead}")
    return _entered(seen, "Canary", "Running", "one pod starts with the new images")


def _tried(seen: Seen, rollout: RolloutStatus) -> Step:
    """Judge the canary."""
    if seen.replicas == 0:
        return _waiting(seen, _NOBODY)
    if seen.is_cold:
        return _waiting(seen, "begins anew once the pods serve as they are declared now")
    if (failure := _failure(seen, rollout)) is not None:
        return _back(seen, *failure)
    if (success := _success(seen, rollout)) is not None:
        return _entered(seen, "Rolling", *success)
    progress = seen.trial.reason if seen.trial is not None else rollout.reason
    return Step(seen.recorded, rollout.model_copy(update={"reason": progress}))


def _failure(seen: Seen, rollout: RolloutStatus) -> tuple[RolloutVerdict, str] | None:
    """Say why the images go back; None while they need not."""
    canary, trial, age_s = seen.canary, seen.trial, _age_s(seen, rollout)
    if canary is not None and canary.trouble:
        return "Failed", canary.trouble
    if trial is not None and trial.verdict in {"Worse", "Aborted"}:
        return "Worse" if trial.verdict == "Worse" else "Failed", trial.reason
    if canary is None and age_s >= seen.startup_s + _SLACK_S:
        return "Failed", "its pod could not be made within startupSeconds"
    if age_s >= _longest_s(seen) and not (canary is not None and canary.is_ready):
        return "Failed", "its pod was not ready when its time was up"
    return None


def _success(seen: Seen, rollout: RolloutStatus) -> tuple[RolloutVerdict, str] | None:
    """Say why the images go on; None while that is not known."""
    canary, trial = seen.canary, seen.trial
    if trial is not None and trial.verdict != "Running":
        return "Better" if trial.verdict == "Better" else "NoDifference", trial.reason
    if canary is None or not canary.is_ready:
        return None
    if seen.replicas == 1 and not seen.has_surge:
        return "NoDifference", "no pod is left to compare with: maxSurge is 0"
    if _age_s(seen, rollout) >= _longest_s(seen):
        return "NoDifference", "was not compared to the end in time"
    return None


def _longest_s(seen: Seen) -> float:
    """Return the longest a canary may take, restarts of the operator included, in seconds."""
    return seen.startup_s + seen.canary_s + 2 * _SLACK_S


def _rolled(seen: Seen, rollout: RolloutStatus) -> Step:
    """Wait until all pods have what was found good; a rollout that is stuck goes back."""
    pods = seen.pods
    if seen.is_cold or (pods.has_new_images and pods.is_settled):
        done = rollout.model_copy(update={"phase": "Done", "since": timestamp(seen.now)})
        return Step(seen.wanted, done)
    if pods.has_new_images and pods.is_late and _age_s(seen, rollout) >= seen.startup_s:
        why = pods.trouble or "the Deployment made no progress"
        return _back(seen, "Failed", f"not all pods got them within startupSeconds: {why}")
    return Step(seen.recorded, rollout)


def _has_waited_long(seen: Seen) -> bool:
    rollout = seen.rollout
    return rollout is not None and _age_s(seen, rollout) >= seen.startup_s


def _waiting(seen: Seen, reason: str) -> Step:
    before = seen.rollout
    if before is not None and before.phase == "Waiting":
        return Step(seen.recorded, before.model_copy(update={"reason": reason}))
    return _entered(seen, "Waiting", None, reason)


def _back(seen: Seen, verdict: RolloutVerdict, why: str) -> Step:
    return _entered(seen, "RolledBack", verdict, f"{why[:900]}; {_KEPT}")


def _entered(seen: Seen, phase: RolloutPhase, verdict: RolloutVerdict | None, reason: str) -> Step:
    rollout = RolloutStatus(
        phase=phase,
        images=seen.wanted,
        verdict=verdict,
        reason=reason[:1024],
        since=timestamp(seen.now),
    )
    return Step(seen.recorded, rollout)


def _age_s(seen: Seen, rollout: RolloutStatus) -> float:
    return (seen.now - datetime.fromisoformat(rollout.since)).total_seconds()
