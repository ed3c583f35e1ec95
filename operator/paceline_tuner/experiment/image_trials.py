"""ImageTrials: pods with new images beside the others, compared by the experiments' test."""

from collections.abc import Collection, Mapping

from paceline_tuner.experiment.policy import policy_of
from paceline_tuner.experiment.trial import ExperimentTrial, assigned, judge, take
from paceline_tuner.service_report import ExperimentReport
from paceline_tuner.service_spec import ExperimentPlan, Overrides
from paceline_tuner.service_target import ServiceTarget
from paceline_tuner.window import Evidence

_MIN_S = 300.0


class ImageTrials:
    """The trials of all services, kept between ticks. One that was forgotten begins anew."""

    def __init__(self) -> None:
        """Know no service yet."""
        self._trials: dict[str, ExperimentTrial] = {}

    def observe(
        self,
        target: ServiceTarget,
        base: Collection[str],
        evidences: Mapping[str, Evidence],
        now: float,
    ) -> ExperimentReport | None:
        """Take in what the pods did; tells how the canary compares with the pods of `base`."""
        if not target.image_trial:
            self.forget(target.key)
            return None
        canaries = [pod.name for pod in target.pods if pod.is_canary]
        trial = self._trials.get(target.key)
        is_same = trial is not None and trial.plan.name == target.image_trial
        if trial is None or not is_same or trial.sla != target.spec.sla:
            if not canaries:
                self.forget(target.key)
                return None
            trial = _begun(target, now)
        if trial.verdict == "Running" and not target.spec.paused:
            trial = assigned(trial, base, canaries)
        if trial.verdict == "Running" and not target.spec.paused:
            trial = judge(take(trial, evidences), now)
        self._trials[target.key] = trial
        return trial.report(None)

    def forget(self, key: str) -> None:
        """Drop a service that was deleted, or whose images are not tried any more."""
        self._trials.pop(key, None)


def _begun(target: ServiceTarget, now: float) -> ExperimentTrial:
    policy, longest_s = policy_of(target.spec), target.image_trial_s
    plan = ExperimentPlan(
        name=target.image_trial,
        kind="Canary",
        overrides=Overrides(),
        min_s=min(_MIN_S, longest_s),
        max_s=longest_s,
    )
    return ExperimentTrial(plan, policy, policy, target.spec.sla, now)
