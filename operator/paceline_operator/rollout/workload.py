"""What the Deployments of a service look like while its images change, or do not."""

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Final

from paceline_api.hashes import template_hash
from paceline_api.inference_service import InferenceService
from paceline_api.labels import CANARY, Manifest, canary_name
from paceline_api.status import Images
from paceline_operator.observe import Observation
from paceline_operator.render.children import Children, Surroundings, children
from paceline_operator.rollout.images import held_hash, is_asked, live_hash
from paceline_operator.rollout.step import Seen, Step
from paceline_operator.write_plan import WritePlan

_TRIES: Final = {CANARY: "true"}


@dataclass(frozen=True, slots=True)
class Workload:
    """The pods of the service's own Deployment, and the one beside them."""

    images: Images
    template_hash: str
    replicas: int
    canary: Images | None = None
    """None: no pod tries anything."""


def workload(observation: Observation, seen: Seen, step: Step) -> Workload:
    """Follow the phase that status has: what was only just decided is written there first."""
    spec, hashed = observation.service.spec, live_hash(observation.deployment)
    declared = template_hash(spec)
    if step.is_at_once:
        return Workload(seen.wanted, declared, seen.replicas)
    held = Workload(step.images, held_hash(spec, step.images, hashed), seen.replicas)
    rollout = seen.rollout
    if step.images == seen.wanted or rollout is None or rollout.images != seen.wanted:
        return held
    replicas = seen.replicas if seen.has_surge else max(0, seen.replicas - 1)
    if rollout.phase == "Rolling":
        return Workload(seen.wanted, declared, replicas, canary=seen.wanted)
    if rollout.phase == "Canary" and step.is_rolling:
        return replace(held, replicas=replicas, canary=seen.wanted)
    return held


def render(service: InferenceService, around: Surroundings, pods: Workload) -> Children:
    """Render the children with these images, and the canary, or its deletion."""
    found = _children(service, around, pods.images, pods.template_hash)
    wanted = tuple(
        _with_replicas(manifest, pods.replicas) if manifest["kind"] == "Deployment" else manifest
        for manifest in found.wanted
    )
    if pods.canary is None:
        canary_id = ("Deployment", canary_name(service.metadata.name))
        return replace(found, wanted=wanted, unwanted=(*found.unwanted, canary_id))
    tried = _children(service, around, pods.canary, template_hash(service.spec))
    deployment = next(one for one in tried.wanted if one["kind"] == "Deployment")
    return replace(found, wanted=(*wanted, _canary(deployment)))


def judged_by(plan: WritePlan, service: InferenceService, seen: Seen, pods: Workload) -> WritePlan:
    """Say by which template the pods are Ready, and why they may never be.

    Where the spec names the images that the pods have, they keep the hash that they have.
    """
    if not is_asked(service.spec, seen.recorded):
        return replace(plan, template_hash=pods.template_hash)
    rollout = seen.rollout
    is_back = rollout is not None and rollout.phase == "RolledBack"
    if rollout is None or not is_back or rollout.images != seen.wanted:
        return plan
    return replace(plan, rolled_back=rollout.reason)


def _children(
    service: InferenceService, around: Surroundings, images: Images, hashed: str
) -> Children:
    engine = service.spec.engine.model_copy(update={"image": images.engine})
    spec = service.spec.model_copy(update={"engine": engine})
    return children(
        service.model_copy(update={"spec": spec}),
        replace(around, sidecar_image=images.sidecar),
        hashed,
    )


def _with_replicas(deployment: Manifest, replicas: int) -> Manifest:
    return deployment | {"spec": deployment["spec"] | {"replicas": replicas}}


def _canary(deployment: Manifest) -> Manifest:
    """Make of the service's Deployment one of a single pod, which gets its share of requests.

    Its pods carry all labels of the others. Its own label keeps it from taking pods of theirs; its
    pods belong to its ReplicaSet, which keeps the other Deployment from taking them.
    """
    found = _with_replicas(deepcopy(deployment), 1)
    metadata, spec = found["metadata"], found["spec"]
    metadata["name"] = canary_name(metadata["name"])
    metadata["labels"] |= _TRIES
    spec["selector"]["matchLabels"] |= _TRIES
    spec["template"]["metadata"]["labels"] |= _TRIES
    return found
