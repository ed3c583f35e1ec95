"""Course: the experiments of one service, one after the other. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from paceline_tuner.experiment.policy import overridden, policy_of, rollout_name
from paceline_tuner.experiment.trial import Trial, ended, enrol, judge, take
from paceline_tuner.service_report import ExperimentReport
from paceline_tuner.service_spec import ExperimentPlan, Overrides, Policy
from paceline_tuner.service_target import ServiceTarget
from paceline_tuner.window import Evidence

_MIN_PODS = 2
_MIN_ROLLOUT_PODS = 3
_ROLLOUT_MIN_S, _ROLLOUT_MAX_S = 300.0, 900.0
_REMEMBERED = 50
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
    """What is remembered of one service."""

    held: Policy | None = None
    """What pods outside a trial were last given; None before the first look."""
    trial: Trial | None = None
    """The one that runs."""
    last: ExperimentReport | None = None
    """The newest conclusion."""
    ended: Mapping[str, ExperimentReport] = field(default_factory=dict)
    """By name: these are not started again."""


def resumed(told: ExperimentReport | None) -> ExperimentLifecycle:
    """Go on from what status tells: verdicts stand, what still ran begins anew."""
    if told is None:
        return ExperimentLifecycle()
    if told.verdict == "Running":
        return ExperimentLifecycle(held=told.held)
    return ExperimentLifecycle(held=told.held, last=told, ended={told.name: told})


def directed(course: ExperimentLifecycle, target: ServiceTarget, now: float) -> ExperimentLifecycle:
    """Begin, end or go on with a trial as the spec and the ready pods want it."""
    pods = [pod.name for pod in target.pods]
    course = _checked(course, target)
    if course.trial is None:
        course = _begun(course, target, now)
    if course.trial is not None:
        course = _enrolled(course, enrol(course.trial, pods, now))
    if course.trial is None:
        course = replace(course, held=_common(course, target))
    return course


def observed(
    course: ExperimentLifecycle, evidences: Mapping[str, Evidence], now: float
) -> ExperimentLifecycle:
    """Count what the pods did, and conclude where that suffices."""
    if course.trial is None:
        return course
    return _settled(replace(course, trial=judge(take(course.trial, evidences), now)))


def policy_for(course: ExperimentLifecycle, target: ServiceTarget, pod: str) -> Policy:
    """Choose the policy that one pod has now."""
    trial = course.trial
    if trial is None:
        return _common(course, target)
    return trial.candidate if pod in trial.candidate_pods else trial.base


def report(course: ExperimentLifecycle, target: ServiceTarget) -> ExperimentReport | None:
    """Tell of the trial that runs, of the one that waits, or of the last verdict."""
    if course.trial is not None:
        kind = course.trial.plan.kind
        return course.trial.report(course.trial.base if kind == "Rollout" else None)
    plan, last = target.spec.experiment, course.last
    if plan is not None and plan.name not in course.ended:
        return ExperimentReport(plan.name, plan.kind, "Running", _why_waiting(course, target))
    if plan is not None:
        return course.ended[plan.name]
    return last if last is not None and last.kind == "Rollout" else None


def _enrolled(course: ExperimentLifecycle, trial: Trial) -> ExperimentLifecycle:
    is_moot = trial.verdict == "Aborted" and trial.lacking_since is not None
    if is_moot and trial.plan.kind == "Rollout":
        # Too few pods for a canary: the change goes out at once, as it would have without one.
        return replace(course, trial=None)
    return _settled(replace(course, trial=trial))


def _checked(course: ExperimentLifecycle, target: ServiceTarget) -> ExperimentLifecycle:
    """End the trial that the spec no longer asks for, or that it makes meaningless."""
    trial, spec = course.trial, target.spec
    if trial is None:
        return course
    declared = policy_of(spec)
    if trial.plan.kind == "Rollout":
        is_same = declared == trial.candidate and spec.sla == trial.sla
        # Dropped without a verdict: what is declared now is tried anew, against the same base.
        return course if is_same and spec.rollout == "Canary" else replace(course, trial=None)
    plan = spec.experiment
    if plan is None or plan.name != trial.plan.name:
        return replace(course, trial=None)
    reason = ""
    if spec.sla != trial.sla:
        reason = "the SLA changed"
    elif declared != trial.base:
        reason = "the declared policy changed"
    elif plan.overrides != trial.plan.overrides or plan.kind != trial.plan.kind:
        reason = "the candidate changed"
    if not reason:
        return course
    return _settled(replace(course, trial=ended(trial, "Aborted", reason)))


def _begun(course: ExperimentLifecycle, target: ServiceTarget, now: float) -> ExperimentLifecycle:
    spec, declared, num_pods = target.spec, policy_of(target.spec), len(target.pods)
    if spec.paused:
        return course
    if num_pods >= _MIN_ROLLOUT_PODS and _is_to_roll_out(course, target):
        plan = ExperimentPlan(
            rollout_name(declared), "Rollout", Overrides(), 0.5, _ROLLOUT_MIN_S, _ROLLOUT_MAX_S
        )
        base = course.held or declared
        return replace(course, trial=Trial(plan, base, declared, spec.sla, now))
    wanted = spec.experiment
    if wanted is None or wanted.name in course.ended or num_pods < _MIN_PODS:
        return course
    if _held_back(course, target) is not None:
        return course
    candidate = overridden(declared, wanted.overrides)
    return replace(course, trial=Trial(wanted, declared, candidate, spec.sla, now))


def _is_to_roll_out(course: ExperimentLifecycle, target: ServiceTarget) -> bool:
    declared = policy_of(target.spec)
    return (
        target.spec.rollout == "Canary"
        and course.held is not None
        and course.held not in {declared, _promoted(course, target)}
        and rollout_name(declared) not in course.ended
    )


def _common(course: ExperimentLifecycle, target: ServiceTarget) -> Policy:
    """Choose what all pods have outside a trial."""
    held_back = _held_back(course, target)
    return held_back or _promoted(course, target) or policy_of(target.spec)


def _held_back(course: ExperimentLifecycle, target: ServiceTarget) -> Policy | None:
    """Give the policy before the declared one, where that was rolled back."""
    rollout = course.ended.get(rollout_name(policy_of(target.spec)))
    if target.spec.rollout != "Canary" or rollout is None:
        return None
    return rollout.held if rollout.verdict in {"Worse", "Aborted"} else None


def _promoted(course: ExperimentLifecycle, target: ServiceTarget) -> Policy | None:
    """Give the candidate that was found better, while the spec still names it."""
    plan = target.spec.experiment
    result = course.ended.get(plan.name) if plan is not None else None
    if plan is None or result is None or (result.kind, result.verdict) != ("Canary", "Better"):
        return None
    return overridden(policy_of(target.spec), plan.overrides)


def _why_waiting(course: ExperimentLifecycle, target: ServiceTarget) -> str:
    if target.spec.paused:
        return "waits: the service is paused"
    if _held_back(course, target) is not None:
        return "waits: the declared policy was rolled back, change spec.tuning first"
    return "waits for two ready pods, one for each policy"


def _settled(course: ExperimentLifecycle) -> ExperimentLifecycle:
    """Move a trial that has its verdict to the conclusions."""
    trial = course.trial
    if trial is None or trial.verdict == "Running":
        return course
    kind = trial.plan.kind
    told = trial.report(trial.base if kind == "Rollout" else None)
    told = replace(told, reason=f"{told.reason}; {_advice(kind, trial.verdict)}")
    newest = dict(list({**course.ended, told.name: told}.items())[-_REMEMBERED:])
    return replace(course, trial=None, last=told, ended=newest)


def _advice(kind: str, verdict: str) -> str:
    if kind == "Rollout":
        return _ADVICE_ROLLOUT[verdict]
    if kind == "AB":
        return _ADVICE_AB.get(verdict, _ADVICE[verdict])
    return _ADVICE[verdict]
