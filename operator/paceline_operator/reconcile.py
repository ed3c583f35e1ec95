"""Reconcile one service: observe, decide, render, apply, report."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_operator.apply import Applier
from paceline_operator.errors import (
    GoneError,
    LeavingError,
    NameTakenError,
    OperatorError,
    TerminatingError,
    WriteRefusedError,
)
from paceline_operator.extras import Extras
from paceline_operator.loading import LoadingPods
from paceline_operator.observe import Observation, Watched, observe
from paceline_operator.render.children import Surroundings
from paceline_operator.report import Reporter
from paceline_operator.rollout.rollout import RolloutPlan, Rollouts
from paceline_operator.service_conditions import service_conditions
from paceline_operator.service_status import service_status
from paceline_tuner.service_report import ServiceReport

_log = logging.getLogger(__name__)


_PASSING_S: Final = 10.0
"""A right that is missing for less may only be late, and what leaves takes a moment: nobody is
told."""
_FORBIDDEN: Final = 403


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one reconcile."""

    service: InferenceService | None
    """None where it is gone."""
    refusal: OperatorError | None = None
    """Why its children could not be written: it is tried again, ever more seldom."""


@dataclass(slots=True)
class Reconciler:
    """Brings one service at a time closer to its spec. Level-triggered: it may run at any time."""

    watched: Watched
    applier: Applier
    extras: Extras
    loading: LoadingPods
    reporter: Reporter
    around: Surroundings
    reports: Mapping[str, ServiceReport]
    """The tuner's last conclusion about each service."""
    now: Callable[[], datetime]
    _refused_since: dict[str, datetime] = field(init=False, default_factory=dict)
    _rollouts: Rollouts = field(init=False)

    def __post_init__(self) -> None:
        """Let one service at a time get new images."""
        self._rollouts = Rollouts(self.watched, self.around)

    async def reconcile(self, key: str) -> Outcome:
        """Look once and do what is needed."""
        observation = observe(self.watched, key, self.reports.get(key), self.now())
        if observation is None:
            self.forget(key)
            return Outcome(None)
        service = self.reporter.freshest(observation.service)
        rollout = self._rollouts.plan(replace(observation, service=service))
        plan = rollout.writes
        try:
            observation, refusal = await self._write(replace(observation, service=service), rollout)
        except TerminatingError as going:  # the service goes too, a moment later
            _log.debug("%s: %s", key, going)
            return Outcome(service)
        except GoneError as gone:
            _log.warning("%s", gone)
            self.forget(key)
            return Outcome(None)
        if not self._may_pass(key, refusal):
            observation = await self.loading.look(observation)
            problem = "" if refusal is None else str(refusal)
            conditions = service_conditions(observation, plan, problem=problem)
            status = service_status(observation, plan, conditions)
            await self.reporter.report(service, rollout.told(status, observation))
        return Outcome(service, refusal)

    def _may_pass(self, key: str, refusal: OperatorError | None) -> bool:
        """Tell whether a refusal may end by itself, as that of a right which is about to come."""
        is_forbidden = isinstance(refusal, WriteRefusedError) and refusal.code == _FORBIDDEN
        if not is_forbidden and not isinstance(refusal, LeavingError):
            self._refused_since.pop(key, None)
            return False
        since = self._refused_since.setdefault(key, self.now())
        return (self.now() - since).total_seconds() < _PASSING_S

    async def _write(
        self, observation: Observation, rollout: RolloutPlan
    ) -> tuple[Observation, OperatorError | None]:
        """Render and apply the children; a refusal is a condition for a person, not a crash."""
        service, writes = observation.service, rollout.writes.writes_children
        try:
            await self.applier.secure_token(service, may_create=writes)
            if writes:
                rendered = rollout.render(service, self.around)
                found = await self.applier.apply(observation, rendered)
                observation = replace(observation, children=found)
                lacks = await self.extras.bring(observation)
                observation = replace(observation, lacks=lacks)
        except (LeavingError, NameTakenError, WriteRefusedError) as refusal:
            return observation, refusal
        return observation, None

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._refused_since.pop(key, None)
        self._rollouts.forget(key)
        self.applier.forget(key)
        self.extras.forget(key)
        self.loading.forget(key)
        self.reporter.forget(key)
