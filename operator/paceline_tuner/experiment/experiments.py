"""Experiments: the experiment lifecycles of all services, kept between ticks."""

from collections.abc import Mapping
from dataclasses import replace

from paceline_tuner.experiment.lifecycle import (
    ExperimentLifecycle,
    directed,
    observed,
    policy_for,
    report,
    resumed,
)
from paceline_tuner.experiment.policy import under
from paceline_tuner.service_report import ExperimentReport
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_target import ServiceTarget
from paceline_tuner.window import Evidence


class Experiments:
    """Asked once before each tick for the pods' specs, and shown once after it what they did."""

    def __init__(self) -> None:
        """Know no service yet."""
        self._lifecycles: dict[str, ExperimentLifecycle] = {}

    def specs(self, target: ServiceTarget, now: float) -> dict[str, TuningSpec]:
        """Give each pod the spec of its arm; all have the service's where nothing is tried."""
        lifecycle = self._lifecycles.get(target.key) or resumed(target.previous_report)
        # A pod with other images would blur what two policies differ in: it has the base's.
        same = replace(target, pods=tuple(pod for pod in target.pods if not pod.is_canary))
        lifecycle = self._lifecycles[target.key] = directed(lifecycle, same, now)
        trying = lifecycle.trial.candidate_pods if lifecycle.trial is not None else ()
        return {
            pod.name: _for_arm(
                under(target.spec, policy_for(lifecycle, target, pod.name)),
                is_candidate=pod.is_canary or pod.name in trying,
            )
            for pod in target.pods
        }

    def observe(
        self, target: ServiceTarget, evidences: Mapping[str, Evidence], now: float
    ) -> ExperimentReport | None:
        """Take in what the pods did, by pod; tells how the experiment stands."""
        lifecycle = self._lifecycles.get(target.key, ExperimentLifecycle())
        if not target.spec.paused:
            lifecycle = observed(lifecycle, evidences, now)
        self._lifecycles[target.key] = lifecycle
        return report(lifecycle, target)

    def forget(self, key: str) -> None:
        """Drop a service that was deleted."""
        self._lifecycles.pop(key, None)


def _for_arm(spec: TuningSpec, *, is_candidate: bool) -> TuningSpec:
    return spec if spec.is_candidate == is_candidate else replace(spec, is_candidate=is_candidate)
