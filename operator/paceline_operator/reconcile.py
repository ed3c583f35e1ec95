"""Reconcile one service: observe, decide, render, apply, report."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_operator.apply import Applier
from paceline_operator.errors import (
    ApiError,
    GoneError,
    NameTakenError,
    OperatorError,
    TerminatingError,
    WriteRefusedError,
)
from paceline_operator.observe import Observation, Watched, observe
from paceline_operator.render.children import Surroundings, children
from paceline_operator.report import Reporter
from paceline_operator.service_conditions import service_conditions
from paceline_operator.service_status import service_status
from paceline_operator.write_plan import WritePlan, plan_writes
from paceline_tuner.service_report import ServiceReport

_log = logging.getLogger(__name__)


_PASSING_S: Final = 10.0
"""A right that is missing, or an error, for less than this may only pass: nobody is told."""
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
    reporter: Reporter
    around: Surroundings
    reports: Mapping[str, ServiceReport]
    """The tuner's last conclusion about each service."""
    now: Callable[[], datetime]
    _failing_since: dict[str, datetime] = field(init=False, default_factory=dict)

    async def reconcile(self, key: str) -> Outcome:
        """Look once and do what is needed; raises ApiError where it is to be tried again."""
        observation = observe(self.watched, key, self.reports.get(key), self.now())
        if observation is None:
            self.forget(key)
            return Outcome(None)
        service = self.reporter.freshest(observation.service)
        plan = plan_writes(service.spec)
        observation = replace(observation, service=service)
        try:
            observation, refusal = await self._write(observation, plan)
        except TerminatingError as going:  # the service goes too, a moment later
            _log.debug("%s: %s", key, going)
            return Outcome(service)
        except GoneError as gone:
            _log.warning("%s", gone)
            self.forget(key)
            return Outcome(None)
        except ApiError as failure:  # it is tried again; a person may wonder why nothing happens
            if not self._may_pass(key, failure):
                await self._report(observation, plan, failure=str(failure))
            raise
        if not self._may_pass(key, refusal):
            await self._report(observation, plan, problem="" if refusal is None else str(refusal))
        return Outcome(service, refusal)

    async def _report(
        self, observation: Observation, plan: WritePlan, *, problem: str = "", failure: str = ""
    ) -> None:
        conditions = service_conditions(observation, plan, problem=problem, failure=failure)
        status = service_status(observation, plan, conditions)
        await self.reporter.report(observation.service, status)

    def _may_pass(self, key: str, problem: OperatorError | None) -> bool:
        """Tell whether a problem is so young that it may end by itself.

        A right may be about to come, a webhook or the API server about to start.
        """
        is_final = isinstance(problem, WriteRefusedError) and problem.code != _FORBIDDEN
        if is_final or not isinstance(problem, ApiError):
            self._failing_since.pop(key, None)
            return False
        since = self._failing_since.setdefault(key, self.now())
        return (self.now() - since).total_seconds() < _PASSING_S

    async def _write(
        self, observation: Observation, plan: WritePlan
    ) -> tuple[Observation, OperatorError | None]:
        """Render and apply the children; a refusal is a condition for a person, not a crash."""
        service = observation.service
        try:
            await self.applier.secure_token(service, may_create=plan.writes_children)
            if plan.writes_children:
                rendered = children(service, self.around, plan.template_hash)
                found = await self.applier.apply(observation, rendered)
                observation = replace(observation, children=found)
        except (NameTakenError, WriteRefusedError) as refusal:
            return observation, refusal
        return observation, None

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._failing_since.pop(key, None)
        self.applier.forget(key)
        self.reporter.forget(key)
