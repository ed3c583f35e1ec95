"""Names, labels, selectors and owner references of all that the operator writes."""

from typing import Any, Final

from paceline_api.inference_service import GROUP, KIND, VERSION, InferenceService

Manifest = dict[str, Any]

SERVICE_LABEL: Final = f"{GROUP}/service"
TEMPLATE_HASH: Final = f"{GROUP}/template-hash"
"""Label of the pods, and annotation of the Deployment: the hash of the cold fields."""
CANARY: Final = f"{GROUP}/canary"
"""Label of the one pod that tries new images, and in the selector of its Deployment alone."""
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "paceline-operator"
ADMIN_TLS: Final = "admin-tls"
"""Name of port 8001 where it speaks TLS; it is `admin` elsewhere."""
LOAD_REPORT_PORT: Final = 8002
"""The port on which a pod tells gateways its load between answers, by gRPC. The sidecar's image
sets it, because a change of the pod's template would restart existing pods."""
OWNED: Final = f"{MANAGED_BY}={MANAGER}"
"""Selects all our children, for the watches."""


def selector(name: str) -> dict[str, str]:
    """Select the pods of one service."""
    return {SERVICE_LABEL: name}


def labels(name: str) -> dict[str, str]:
    """Label a child of one service."""
    return {
        "app.kubernetes.io/name": "inferenceservice",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/part-of": "paceline",
        MANAGED_BY: MANAGER,
        **selector(name),
    }


def config_map_name(name: str) -> str:
    """Name the ConfigMap of the hot configuration."""
    return f"{name}-runtime"


def canary_name(name: str) -> str:
    """Name the Deployment of the pod that tries new images."""
    return f"{name}-canary"


def pods_name(name: str) -> str:
    """Name the headless Service of the pods."""
    return f"{name}-pods"


def secret_name(name: str) -> str:
    """Name the Secret of the runtime token."""
    return f"{name}-runtime-token"


def owner_reference(service: InferenceService) -> Manifest:
    """Let the garbage collector delete a child with its service."""
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def metadata(service: InferenceService, name: str | None = None) -> Manifest:
    """Build the metadata of a child, named like its service unless told otherwise."""
    return {
        "name": name or service.metadata.name,
        "namespace": service.metadata.namespace,
        "labels": labels(service.metadata.name),
        "ownerReferences": [owner_reference(service)],
    }
