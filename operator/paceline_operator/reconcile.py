"""Reconcile one service: observe, decide, render, apply, report."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.apply import Applier
from paceline_operator.errors import (
    ApiError,
    GoneError,
    LeavingError,
    NameTakenError,
    OperatorError,
    TerminatingError,
    WriteRefusedError,
)
from paceline_operator.events import adopted_event
from paceline_operator.extras import Extras
from paceline_operator.held_up import HeldUpPods
from paceline_operator.loading import LoadingPods
from paceline_operator.observe import ObjectId, Observation, Observer
from paceline_operator.render.children import Surroundings
from paceline_operator.report import Reporter
from paceline_operator.rollout.rollout import RolloutPlan, Rollouts
from paceline_operator.service_conditions import service_conditions
from paceline_operator.service_status import service_status

_log = logging.getLogger(__name__)


_PASSING_S: Final = 10.0
"""Missing rights, API errors and children that are still being deleted often end by themselves:
they are not reported before this time."""
_FORBIDDEN: Final = 403
_TOKEN_DOUBT_S: Final = 15.0
_NOBODYS: Final[Manifest] = {"metadata": {}}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one reconcile."""

    service: InferenceService | None
    """None where it is gone."""
    refusal: OperatorError | None = None
    """Why its children could not be written: it is tried again, ever more seldom."""
    is_told: bool = True
    """Whether the status says what was found; else it is to be looked at again soon."""
    is_moving: bool = False
    """Whether it changes by itself, unseen by the watches: it is to be looked at often."""


@dataclass(slots=True)
class Reconciler:
    """Brings one service at a time closer to its spec. Level-triggered: it may run at any time."""

    observer: Observer
    applier: Applier
    extras: Extras
    held_up: HeldUpPods
    loading: LoadingPods
    reporter: Reporter
    around: Surroundings
    _failing_since: dict[str, datetime] = field(init=False, default_factory=dict)
    _rollouts: Rollouts = field(init=False)

    def __post_init__(self) -> None:
        """Let one service at a time get new images."""
        self._rollouts = Rollouts(self.observer.watched, self.around)

    async def reconcile(self, key: str, *, may_tell_later: bool = False) -> Outcome:
        """Look once and do what is needed; raises ApiError where it is to be tried again.

        Where others wait for their children, `may_tell_later` leaves out the status of a service
        whose own have just been written: it would say that nothing is there yet.
        """
        observation = self.observer.observe(key)
        if observation is None:
            self.forget(key)
            return Outcome(None)
        service = self.reporter.freshest(observation.service)
        observation = replace(observation, service=service)
        rollout, before = self._rollouts.plan(observation), observation.children
        try:
            observation, refusal = await self._write(observation, rollout)
        except TerminatingError as going:  # the service goes too, a moment later
            _log.debug("%s: %s", key, going)
            return Outcome(service)
        except GoneError as gone:
            _log.warning("%s", gone)
            self.forget(key)
            return Outcome(None)
        except ApiError as failure:  # it is tried again; a person may wonder why nothing happens
            if not self._may_pass(key, failure):
                observation = await self.loading.look(observation)
                await self._report(observation, rollout, failure=str(failure))
            raise
        if adopted := self.applier.take_adopted(key):
            await self.reporter.tell(adopted_event(service, adopted))
        is_passing = self._may_pass(key, refusal)
        if may_tell_later and refusal is None and _has_written(before, observation.children):
            return Outcome(service, is_told=False)
        if not is_passing:
            observation = await self.held_up.explain(observation)
            observation = await self.loading.look(observation)
            await self._report(observation, rollout, problem=str(refusal or ""))
        return Outcome(service, refusal, is_moving=_is_moving(observation))

    async def _report(
        self,
        observation: Observation,
        rollout: RolloutPlan,
        *,
        problem: str = "",
        failure: str = "",
    ) -> None:
        plan = rollout.writes
        conditions = service_conditions(observation, plan, problem=problem, failure=failure)
        status = rollout.told(service_status(observation, plan, conditions), observation)
        await self.reporter.report(observation.service, status)

    def _may_pass(self, key: str, problem: OperatorError | None) -> bool:
        """Tell whether a problem is so young that it may end by itself.

        A right may be about to come, a webhook or the API server about to start.
        """
        is_final = isinstance(problem, WriteRefusedError) and problem.code != _FORBIDDEN
        if is_final or not isinstance(problem, ApiError | LeavingError):
            self._failing_since.pop(key, None)
            return False
        since = self._failing_since.setdefault(key, self.observer.now())
        return (self.observer.now() - since).total_seconds() < _PASSING_S

    async def _write(
        self, observation: Observation, rollout: RolloutPlan
    ) -> tuple[Observation, OperatorError | None]:
        """Render and apply the children; a refusal is a condition for a person, not a crash."""
        service, writes = observation.service, rollout.writes.writes_children
        try:
            if writes:
                again_after_s = _token_again_after_s(observation)
                is_there = await self.applier.secure_token(service, again_after_s=again_after_s)
                rendered = rollout.render(service, self.around)
                found = await self.applier.apply(observation, rendered, is_there=is_there)
                observation = replace(observation, children=found)
                lacks = await self.extras.bring(observation, is_there=is_there)
                observation = replace(observation, lacks=lacks)
        except (LeavingError, NameTakenError, WriteRefusedError) as refusal:
            return observation, refusal
        return observation, None

    def forget(self, key: str) -> None:
        """Drop what is remembered of a service that is gone."""
        self._failing_since.pop(key, None)
        self._rollouts.forget(key)
        self.applier.forget(key)
        self.extras.forget(key)
        self.held_up.forget(key)
        self.loading.forget(key)
        self.reporter.forget(key)


def _has_written(before: Mapping[ObjectId, Manifest], after: Mapping[ObjectId, Manifest]) -> bool:
    """Return whether a reconcile changed children; unchanged ones are the identical objects."""
    return len(before) != len(after) or any(
        now is not before.get(which) for which, now in after.items()
    )


def _is_moving(observation: Observation) -> bool:
    """Whether something goes on that no watch tells of: a rollout's clock, a model that loads."""
    rollout = observation.service.status.rollout
    pods = observation.report.pods if observation.report else ()
    return (
        (rollout is not None and rollout.phase != "Done")
        or observation.loading is not None
        or any(pod.waits_for_volumes for pod in observation.pods)
        or any(pod.refuses_token for pod in pods)
    )


def _token_again_after_s(observation: Observation) -> float:
    """Return after how long to try to create the token's Secret again; usually never.

    Nothing of this very service runs yet: the collector may still take the Secret of an earlier
    one, so at once. Pods refuse the token or cannot start: it may have been deleted.
    """
    owners = (observation.deployment or _NOBODYS)["metadata"].get("ownerReferences") or ()
    if not any(owner["uid"] == observation.service.metadata.uid for owner in owners):
        return 0.0
    pods = observation.report.pods if observation.report else ()
    is_refused = any(pod.refuses_token for pod in pods)
    waits = any(pod.waits_for_volumes for pod in observation.pods)
    return _TOKEN_DOUBT_S if is_refused or waits else math.inf
