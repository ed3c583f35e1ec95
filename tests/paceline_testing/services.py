"""Builders of InferenceServices and of the pods that serve them."""

from copy import deepcopy
from typing import Any

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.observe import ContainerStatus, ObservedPod

UID = "0e3c2a52-6c38-4a63-9b8a-3c9b2f6f0f01"


def a_manifest(name: str = "quick", **spec: Any) -> Manifest:
    """The smallest useful manifest; `spec` replaces whole top-level fields, None removes one."""
    fields = {
        "model": {"uri": "builtin://smollm2-135m-instruct"},
        "sla": {"ttft": {"p99": "500ms"}, "tpot": {"p99": "50ms"}},
    } | deepcopy(spec)
    return {
        "apiVersion": "serving.paceline.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {field: value for field, value in fields.items() if value is not None},
    }


def a_live_service(name: str = "quick", **spec: Any) -> Manifest:
    """As the API server would give it."""
    manifest = a_manifest(name, **spec)
    manifest["metadata"] |= {"uid": UID, "generation": 1, "resourceVersion": "1"}
    return manifest


def a_service(name: str = "quick", **spec: Any) -> InferenceService:
    """The same, typed."""
    return InferenceService.read(a_live_service(name, **spec))


def a_pod(name: str = "quick-1", **changes: Any) -> ObservedPod:
    """A pod that serves."""
    running = ContainerStatus(is_running=True, is_ready=True, image_id="engine@sha256:1")
    fields: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{name}",
        "node": "n1",
        "ip": "10.88.0.7",
        "is_ready": True,
        "is_leaving": False,
        "template_hash": "",
        "unschedulable": "",
        "engine": running,
        "sidecar": running,
    }
    return ObservedPod(**(fields | changes))
