"""All children of a service, in the order in which they are written."""

from dataclasses import dataclass

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.render.access import service_account
from paceline_operator.render.config_map import config_map
from paceline_operator.render.deployment import deployment
from paceline_operator.render.disruption_budget import disruption_budget
from paceline_operator.render.network_policy import network_policy
from paceline_operator.render.pod import pod_template
from paceline_operator.render.service import service as public_service


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a manifest depends on besides the spec."""

    engine_image: str
    sidecar_image: str
    operator_namespace: str


@dataclass(frozen=True, slots=True)
class Children:
    """What must exist, and of which kinds nothing may."""

    wanted: tuple[Manifest, ...]
    unwanted_kinds: tuple[str, ...]


def children(service: InferenceService, around: Surroundings, template_hash: str) -> Children:
    """Render everything but the Secret: its content is not a function of the spec."""
    template = pod_template(
        service,
        engine_image=around.engine_image,
        sidecar_image=around.sidecar_image,
        template_hash=template_hash,
    )
    optional = {
        "NetworkPolicy": network_policy(service, operator_namespace=around.operator_namespace),
        "PodDisruptionBudget": disruption_budget(service),
    }
    return Children(
        wanted=(
            service_account(service),
            config_map(service),
            public_service(service),
            *(manifest for manifest in optional.values() if manifest is not None),
            deployment(service, template),
        ),
        unwanted_kinds=tuple(kind for kind, manifest in optional.items() if manifest is None),
    )
