"""The loop: observe, decide, render, apply, report."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from paceline_api.inference_service import InferenceService
from paceline_operator.apply import Applier
from paceline_operator.conditions.derive import judge
from paceline_operator.conditions.plan import Plan, plan
from paceline_operator.errors import NameTakenError, RefusedError, TerminatingError
from paceline_operator.observe import Observed, Watched, observe
from paceline_operator.render.children import Surroundings, children
from paceline_operator.report import Reporter
from paceline_operator.state import status_of
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
    """The tuner's last word on each service."""
    now: Callable[[], datetime]

    async def reconcile(self, key: str) -> InferenceService | None:
        """Look once and do what is needed; returns the service, None where it is gone."""
        observed = observe(self.watched, key, self.reports.get(key), self.now())
        if observed is None:
            self.forget(key)
            return None
        observed = replace(observed, service=self.reporter.freshest(observed.service))
        decided = plan(observed)
        try:
            observed, problem = await self._write(observed, decided)
        except TerminatingError as going:  # the service goes too, a moment later
            _log.debug("%s: %s", key, going)
            return observed.service
        judgements = judge(observed, decided, problem=problem)
        await self.reporter.report(observed.service, status_of(observed, decided, judgements))
        return observed.service

    async def _write(self, observed: Observed, decided: Plan) -> tuple[Observed, str]:
        """Apply the children; a refusal is a condition that a person reads, not a crash."""
        service = observed.service
        try:
            await self.applier.secure_token(service, may_create=decided.writes_children)
            if decided.writes_children:
                rendered = children(service, self.around, decided.template_hash)
                found = await self.applier.apply(observed, rendered)
                observed = replace(observed, children=found)
        except (NameTakenError, RefusedError) as problem:
            _log.debug("%s: %s", service.key, problem)
            return observed, str(problem)
        return observed, ""

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self.applier.forget(key)
        self.reporter.forget(key)
