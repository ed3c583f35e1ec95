"""Which images a service's pods have, and which they are to have.

The images are recorded in status, and before they are, in the running Deployment. So another
operator, or the same one after an upgrade, finds them again and changes no pod.
"""

from paceline_api.hashes import template_hash
from paceline_api.inference_service import InferenceService, Spec
from paceline_api.labels import TEMPLATE_HASH, Manifest
from paceline_api.status import Images


def recorded_images(
    service: InferenceService, deployment: Manifest | None, operator: Images
) -> Images:
    """Give the images that the pods have, or begin with where nothing is recorded.

    Status comes first: images that somebody writes into the Deployment are no record.
    """
    status, live = service.status, live_images(service, deployment)
    if status.images is None:
        return live or _first_images(service.spec, operator)
    is_under_way = status.rollout is not None and status.rollout.phase != "Done"
    wanted = wanted_images(service.spec, status.images, operator)
    if not is_under_way and live == wanted:
        return wanted  # written at once by an operator that did not come to write status
    return status.images


def wanted_images(spec: Spec, recorded: Images, operator: Images) -> Images:
    """Give the images that all pods should have in the end."""
    base = operator if spec.rollout.image_policy == "FollowOperator" else recorded
    return Images(engine=spec.engine.image or base.engine, sidecar=base.sidecar)


def is_asked(spec: Spec, recorded: Images) -> bool:
    """Tell whether the spec itself names another engine than the pods have."""
    return spec.engine.image not in {None, recorded.engine}


def held_hash(spec: Spec, recorded: Images, live_hash: str | None) -> str:
    """Name the template of pods that keep the recorded images.

    `engine.image` is a part of the hash. So that a change of it alone restarts nothing, the pods
    keep their own hash where no other field has changed.
    """
    if live_hash is not None and live_hash in _same_but_for_the_image(spec, recorded):
        return live_hash
    return template_hash(_with_image(spec, recorded.engine) if is_asked(spec, recorded) else spec)


def is_cold_change(spec: Spec, recorded: Images, live_hash: str | None) -> bool:
    """Tell whether the pods' template differs from the spec's in more than its images."""
    same = {template_hash(spec), *_same_but_for_the_image(spec, recorded)}
    return live_hash is not None and live_hash not in same


def live_images(service: InferenceService, deployment: Manifest | None) -> Images | None:
    """Read the images of the service's own Deployment; None without one."""
    if deployment is None:
        return None
    owners = {owner["uid"] for owner in deployment["metadata"].get("ownerReferences", ())}
    if owners and service.metadata.uid not in owners:
        return None  # of an earlier service of that name, or a stranger's
    pod = deployment["spec"]["template"]["spec"]
    found = {
        container["name"]: container["image"]
        for container in (*pod.get("initContainers", ()), *pod["containers"])
    }
    if not {"engine", "sidecar"} <= found.keys():
        return None
    return Images(engine=found["engine"], sidecar=found["sidecar"])


def live_hash(deployment: Manifest | None) -> str | None:
    """Read the hash of the Deployment's pod template."""
    if deployment is None:
        return None
    found = deployment["spec"]["template"]["metadata"].get("labels", {}).get(TEMPLATE_HASH)
    return None if found is None else str(found)


def _first_images(spec: Spec, operator: Images) -> Images:
    """Give a new service the operator's images of the day, but the engine that it names."""
    return Images(engine=spec.engine.image or operator.engine, sidecar=operator.sidecar)


def _same_but_for_the_image(spec: Spec, recorded: Images) -> set[str]:
    """Hash the spec with the recorded engine, named and not named."""
    return {template_hash(_with_image(spec, image)) for image in (None, recorded.engine)}


def _with_image(spec: Spec, image: str | None) -> Spec:
    engine = spec.engine.model_copy(update={"image": image})
    return spec.model_copy(update={"engine": engine})
