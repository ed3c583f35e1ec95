"""Rollouts of images over all services, one at a time: look, decide, render, tell."""

from dataclasses import dataclass, field, replace

from paceline_api.inference_service import InferenceService
from paceline_api.status import Images, Status
from paceline_operator.observe import Observation, Watched
from paceline_operator.render.children import Children, Surroundings
from paceline_operator.rollout.look import look
from paceline_operator.rollout.step import Step, next_step
from paceline_operator.rollout.workload import Workload, judged_by, render, workload
from paceline_operator.write_plan import WritePlan, plan_writes


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """What one reconcile writes for a service."""

    writes: WritePlan
    pods: Workload
    step: Step

    def render(self, service: InferenceService, around: Surroundings) -> Children:
        """Render the children with the images that the pods are to have now."""
        return render(service, around, self.pods)

    def told(self, status: Status, observation: Observation) -> Status:
        """Write down which images the pods have, and how the new ones come."""
        if not self.writes.writes_children:
            return status
        return status.model_copy(
            update={
                "images": self.step.images,
                "rollout": self.step.rollout,
                "updated_replicas": self._updated(status, observation),
            }
        )

    def _updated(self, status: Status, observation: Observation) -> int | None:
        """Count the pods with the wanted images: until they are rolled out, the canary alone."""
        if self.pods.canary is None:
            return status.updated_replicas
        canaries = sum(pod.is_canary and not pod.is_leaving for pod in observation.pods)
        is_held = self.pods.images != self.pods.canary
        return canaries + (0 if is_held else status.updated_replicas or 0)


@dataclass(slots=True)
class Rollouts:
    """Whose turn it is stands in the status of all services.

    What was decided since that was last seen is remembered; another operator decides by status.
    """

    watched: Watched
    around: Surroundings
    _holder: str = field(init=False, default="")
    """The service that has the turn by our last decision."""

    def plan(self, observation: Observation) -> RolloutPlan:
        """Decide for one service. Nothing is awaited here, or two services could both begin."""
        service = observation.service
        operator = Images(engine=self.around.engine_image, sidecar=self.around.sidecar_image)
        seen = look(observation, operator)
        writes = plan_writes(service.spec)
        if not writes.writes_children:
            # What is frozen keeps its turn: two services would go on together later.
            step = Step(seen.recorded, seen.rollout)
        elif seen.wanted == seen.recorded:
            step = next_step(seen)
        else:
            step = next_step(replace(seen, ahead=self._ahead_of(service.key)))
        self._note(service.key, step)
        pods = workload(observation, seen, step)
        return RolloutPlan(judged_by(writes, service, seen, pods), pods, step)

    def forget(self, key: str) -> None:
        """Give back the turn of a service that is done, or gone."""
        if self._holder == key:
            self._holder = ""

    def _note(self, key: str, step: Step) -> None:
        if step.is_rolling:
            self._holder = key
        else:
            self.forget(key)

    def _ahead_of(self, key: str) -> str:
        """Name the other service that is rolled now; empty where none is."""
        if self._holder not in {"", key}:
            return self._holder
        known = [*self.watched.keys()]
        return next((other for other in known if other != key and self._is_rolled(other)), "")

    def _is_rolled(self, key: str) -> bool:
        raw = self.watched.service(key) or {"metadata": {}}
        phase = raw.get("status", {}).get("rollout", {}).get("phase")
        return phase in {"Canary", "Rolling"} and "deletionTimestamp" not in raw["metadata"]
