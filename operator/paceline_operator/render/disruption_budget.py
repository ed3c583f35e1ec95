"""What a node drain may take away at once."""

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest, metadata, selector


def disruption_budget(service: InferenceService) -> Manifest | None:
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
