"""All children of a service, in the order in which they are written."""

import json
from dataclasses import dataclass
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import (
    TEMPLATE_HASH,
    Manifest,
    config_map_name,
    metadata,
    secret_name,
    selector,
)
from paceline_api.pod.runtime_config import runtime_config
from paceline_api.tuning_spec import tuning_spec
from paceline_operator.render.network_policy import network_policy
from paceline_operator.render.pod import pod_template

_PORT: Final = 8000


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
    unwanted: tuple[tuple[str, str], ...] = ()
    """More that must not be, each by kind and name."""

    def is_unwanted(self, which: tuple[str, str]) -> bool:
        """Tell whether an object of this kind and name is to be deleted."""
        return which[0] in self.unwanted_kinds or which in self.unwanted


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
        "PodDisruptionBudget": _disruption_budget(service),
    }
    return Children(
        wanted=(
            _service_account(service),
            _config_map(service),
            _service(service),
            *(manifest for manifest in optional.values() if manifest is not None),
            _deployment(service, template),
        ),
        unwanted_kinds=tuple(kind for kind, manifest in optional.items() if manifest is None),
    )


def token_secret(service: InferenceService, token: str) -> Manifest:
    """Render the Secret that operator and sidecars share."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(service, secret_name(service.metadata.name)),
        "type": "Opaque",
        "stringData": {"token": token},
    }


def url(service: InferenceService) -> str:
    """Name the base URL that an OpenAI client takes, within the cluster."""
    scheme = "https" if service.spec.api.tls else "http"
    host = f"{service.metadata.name}.{service.metadata.namespace}.svc"
    return f"{scheme}://{host}:{_PORT}/v1"


def _service_account(service: InferenceService) -> Manifest:
    """Render an account that no role binds and whose token no pod mounts."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(service),
        "automountServiceAccountToken": False,
    }


def _config_map(service: InferenceService) -> Manifest:
    """Render the hot configuration, for pods that start while the operator is away."""
    config = runtime_config(tuning_spec(service.spec))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(service, config_map_name(service.metadata.name)),
        "data": {"runtime.json": json.dumps(config, indent=2, sort_keys=True)},
    }


def _service(service: InferenceService) -> Manifest:
    """Render the Service of the OpenAI API; the admin port has none."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(service),
        "spec": {
            "selector": selector(service.metadata.name),
            "ports": [{"name": "http", "port": _PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _disruption_budget(service: InferenceService) -> Manifest | None:
    """Render a budget of one pod, where one pod is not the whole service."""
    if service.spec.disruption.budget == "None" or service.spec.replicas <= 1:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(service),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(service.metadata.name)},
            # A pod that never got ready must not hold up a drain.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _deployment(service: InferenceService, template: Manifest) -> Manifest:
    """Render how many pods there are, and how they are replaced."""
    rollout = service.spec.rollout
    meta = metadata(service)
    meta["annotations"] = {TEMPLATE_HASH: template["metadata"]["labels"][TEMPLATE_HASH]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta,
        "spec": {
            "replicas": service.spec.replicas,
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": rollout.startup_seconds,
            "selector": {"matchLabels": selector(service.metadata.name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                },
            },
            "template": template,
        },
    }
