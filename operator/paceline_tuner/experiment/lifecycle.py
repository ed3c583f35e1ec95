"""ExperimentLifecycle: the experiments of one service, one after the other. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline_tuner.experiment.policy import overridden, policy_of, rollout_name
from paceline_tuner.experiment.trial import ExperimentTrial, ended, enrol, judge, take
from paceline_tuner.service_report import ExperimentReport
from paceline_tuner.service_spec import ExperimentPlan, Overrides, Policy
from paceline_tuner.service_target import ServiceTarget
from paceline_tuner.window import Evidence

_MIN_PODS = 2
_MIN_ROLLOUT_PODS = 3
_ROLLOUT_MIN_S, _ROLLOUT_MAX_S = 300.0, 900.0
_MAX_ENDED = 50
_ADVICE = {
    "Better": "all pods have it; write it into spec.tuning and remove the experiment",
    "NoDifference": "the policy is as before; remove the experiment",
    "Worse": "rolled back; remove the experiment, or name a new one",
    "Aborted": "the policy is as before; give the experiment a new name to start again",
}
_ADVICE_AB = {"Better": "the policy is as before; write the candidate into spec.tuning to adopt it"}
_ADVICE_ROLLOUT = {
    "Better": "all pods have the declared policy",
    "NoDifference": "all pods have the declared policy",
    "Worse": "all pods keep the policy before; change spec.tuning",
    "Aborted": "all pods keep the policy before; change spec.tuning, or set rollout: All",
}


@dataclass(frozen=True, slots=True)
class ExperimentLifecycle:
    """What is kept of one service's experiments between two ticks."""

    held: Policy | None = None
    """The policy that pods outside a trial were last given; None before the first tick."""
    trial: ExperimentTrial | None = None
    """The trial that runs."""
    last: ExperimentReport | None = None
    """The newest conclusion."""
    ended: Mapping[str, ExperimentReport] = field(default_factory=dict)
    """Conclusions by name: these experiments are not started again."""


def resumed(previous: ExperimentReport | None) -> ExperimentLifecycle:
    """Go on from the report in status: verdicts stand, a trial that still ran begins anew."""
    if previous is None:
        return ExperimentLifecycle()
    if previous.verdict == "Running":
        return ExperimentLifecycle(held=previous.held)
    return ExperimentLifecycle(held=previous.held, last=previous, ended={previous.name: previous})


def directed(
    lifecycle: ExperimentLifecycle, target: ServiceTarget, now: float
) -> ExperimentLifecycle:
    """Begin, end or go on with a trial as the spec and the ready pods want it."""
    pods = [pod.name for pod in target.pods]
    lifecycle = _checked(lifecycle, target)
    if lifecycle.trial is None:
        lifecycle = _begun(lifecycle, target, now)
    if lifecycle.trial is not None:
        lifecycle = _enrolled(lifecycle, enrol(lifecycle.trial, pods, now))
    if lifecycle.trial is None:
        lifecycle = replace(lifecycle, held=_common(lifecycle, target))
    return lifecycle


def observed(
    lifecycle: ExperimentLifecycle, evidences: Mapping[str, Evidence], now: float
) -> ExperimentLifecycle:
    """Count what the pods did, and conclude where that suffices."""
    if lifecycle.trial is None:
        return lifecycle
    return _settled(replace(lifecycle, trial=judge(take(lifecycle.trial, evidences), now)))


def policy_for(lifecycle: ExperimentLifecycle, target: ServiceTarget, pod: str) -> Policy:
    """Choose the policy that one pod has now."""
    trial = lifecycle.trial
    if trial is None:
        return _common(lifecycle, target)
    return trial.candidate if pod in trial.candidate_pods else trial.base


def report(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> ExperimentReport | None:
    """Tell of the trial that runs, of the one that waits, or of the last verdict."""
    if lifecycle.trial is not None:
        kind = lifecycle.trial.plan.kind
        return lifecycle.trial.report(lifecycle.trial.base if kind == "Rollout" else None)
    plan, last = target.spec.experiment, lifecycle.last
    if plan is not None and plan.name not in lifecycle.ended:
        return ExperimentReport(plan.name, plan.kind, "Running", _why_waiting(lifecycle, target))
    if plan is not None:
        return lifecycle.ended[plan.name]
    return last if last is not None and last.kind == "Rollout" else None


def _enrolled(lifecycle: ExperimentLifecycle, trial: ExperimentTrial) -> ExperimentLifecycle:
    is_moot = trial.verdict == "Aborted" and trial.lacking_since is not None
    if is_moot and trial.plan.kind == "Rollout":
        # Too few pods for a canary: the change goes out at once, as it would have without one.
        return replace(lifecycle, trial=None)
    return _settled(replace(lifecycle, trial=trial))


def _checked(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> ExperimentLifecycle:
    """End the trial that the spec no longer asks for, or that it makes meaningless."""
    trial, spec = lifecycle.trial, target.spec
    if trial is None:
        return lifecycle
    declared = policy_of(spec)
    if trial.plan.kind == "Rollout":
        is_same = declared == trial.candidate and spec.sla == trial.sla
        # Dropped without a verdict: what is declared now is tried anew, against the same base.
        return lifecycle if is_same and spec.rollout == "Canary" else replace(lifecycle, trial=None)
    plan = spec.experiment
    if plan is None or plan.name != trial.plan.name:
        return replace(lifecycle, trial=None)
    reason = ""
    if spec.sla != trial.sla:
        reason = "the SLA changed"
    elif declared != trial.base:
        reason = "the declared policy changed"
    elif plan.overrides != trial.plan.overrides or plan.kind != trial.plan.kind:
        reason = "the candidate changed"
    if not reason:
        return lifecycle
    return _settled(replace(lifecycle, trial=ended(trial, "Aborted", reason)))


def _begun(
    lifecycle: ExperimentLifecycle, target: ServiceTarget, now: float
) -> ExperimentLifecycle:
    spec, declared, num_pods = target.spec, policy_of(target.spec), len(target.pods)
    if spec.paused:
        return lifecycle
    if num_pods >= _MIN_ROLLOUT_PODS and _is_to_roll_out(lifecycle, target):
        plan = ExperimentPlan(
            rollout_name(declared), "Rollout", Overrides(), 0.5, _ROLLOUT_MIN_S, _ROLLOUT_MAX_S
        )
        base = lifecycle.held or declared
        return replace(lifecycle, trial=ExperimentTrial(plan, base, declared, spec.sla, now))
    wanted = spec.experiment
    if wanted is None or wanted.name in lifecycle.ended or num_pods < _MIN_PODS:
        return lifecycle
    if _held_back(lifecycle, target) is not None:
        return lifecycle
    candidate = overridden(declared, wanted.overrides)
    return replace(lifecycle, trial=ExperimentTrial(wanted, declared, candidate, spec.sla, now))


def _is_to_roll_out(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> bool:
    declared = policy_of(target.spec)
    return (
        target.spec.rollout == "Canary"
        and lifecycle.held is not None
        and lifecycle.held not in {declared, _promoted(lifecycle, target)}
        and rollout_name(declared) not in lifecycle.ended
    )


def _common(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> Policy:
    """Choose what all pods have outside a trial."""
    held_back = _held_back(lifecycle, target)
    return held_back or _promoted(lifecycle, target) or policy_of(target.spec)


def _held_back(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> Policy | None:
    """Give the policy before the declared one, where that was rolled back."""
    rollout = lifecycle.ended.get(rollout_name(policy_of(target.spec)))
    if target.spec.rollout != "Canary" or rollout is None:
        return None
    return rollout.held if rollout.verdict in {"Worse", "Aborted"} else None


def _promoted(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> Policy | None:
    """Give the candidate that was found better, while the spec still names it."""
    plan = target.spec.experiment
    result = lifecycle.ended.get(plan.name) if plan is not None else None
    if plan is None or result is None or (result.kind, result.verdict) != ("Canary", "Better"):
        return None
    return overridden(policy_of(target.spec), plan.overrides)


def _why_waiting(lifecycle: ExperimentLifecycle, target: ServiceTarget) -> str:
    if target.spec.paused:
        return "waits: the service is paused"
    if _held_back(lifecycle, target) is not None:
        return "waits: the declared policy was rolled back, change spec.tuning first"
    return "waits for two ready pods, one for each policy"


def _settled(lifecycle: ExperimentLifecycle) -> ExperimentLifecycle:
    """Move a trial that has its verdict to the conclusions."""
    trial = lifecycle.trial
    if trial is None or trial.verdict == "Running":
        return lifecycle
    kind = trial.plan.kind
    concluded = trial.report(trial.base if kind == "Rollout" else None)
    concluded = replace(concluded, reason=f"{concluded.reason}; {_advice(kind, trial.verdict)}")
    newest = dict(list({**lifecycle.ended, concluded.name: concluded}.items())[-_MAX_ENDED:])
    return replace(lifecycle, trial=None, last=concluded, ended=newest)


def _advice(kind: str, verdict: str) -> str:
    if kind == "Rollout":
        return _ADVICE_ROLLOUT[verdict]
    if kind == "AB":
        return _ADVICE_AB.get(verdict, _ADVICE[verdict])
    return _ADVICE[verdict]
