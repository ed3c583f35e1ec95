"""The Deployment: how many pods, and how they are replaced."""

from paceline_api.inference_service import InferenceService
from paceline_api.labels import TEMPLATE_HASH, Manifest, metadata, selector


def deployment(service: InferenceService, template: Manifest) -> Manifest:
    """Render the Deployment around a pod template."""
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
