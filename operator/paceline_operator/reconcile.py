"""Reconcile one service: observe, decide, render, apply, report."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from paceline_api.inference_service import InferenceService
from paceline_operator.apply import Applier
from paceline_operator.errors import NameTakenError, TerminatingError, WriteRefusedError
from paceline_operator.observe import Observation, Watched, observe
from paceline_operator.render.children import Surroundings, children
from paceline_operator.report import Reporter
from paceline_operator.service_conditions import service_conditions
from paceline_operator.service_status import service_status
from paceline_operator.write_plan import WritePlan, plan_writes
from paceline_tuner.service_report import ServiceReport

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one service at a time closer to its spec. Level-triggered: it may run at any time."""

    watched: Watched
    applier: Applier
    reporter: Reporter
    around: Surroundings
    reports: Mapping[str, ServiceReport]
    """The tuner's last conclusion about each service."""
    now: Callable[[], datetime]

    async def reconcile(self, key: str) -> InferenceService | None:
        """Look once and do what is needed; return the service, None where it is gone."""
        observation = observe(self.watched, key, self.reports.get(key), self.now())
        if observation is None:
            self.forget(key)
            return None
        service = self.reporter.freshest(observation.service)
        plan = plan_writes(service.spec)
        try:
            observation, problem = await self._write(replace(observation, service=service), plan)
        except TerminatingError as going:  # the service goes too, a moment later
            _log.debug("%s: %s", key, going)
            return service
        conditions = service_conditions(observation, plan, problem=problem)
        await self.reporter.report(service, service_status(observation, plan, conditions))
        return service

    async def _write(self, observation: Observation, plan: WritePlan) -> tuple[Observation, str]:
        """Render and apply the children; a refusal is a condition for a person, not a crash."""
        service = observation.service
        try:
            await self.applier.secure_token(service, may_create=plan.writes_children)
            if plan.writes_children:
                rendered = children(service, self.around, plan.template_hash)
                found = await self.applier.apply(observation, rendered)
                observation = replace(observation, children=found)
        except (NameTakenError, WriteRefusedError) as problem:
            _log.debug("%s: %s", service.key, problem)
            return observation, str(problem)
        return observation, ""

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self.applier.forget(key)
        self.reporter.forget(key)
