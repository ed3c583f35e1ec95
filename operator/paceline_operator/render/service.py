"""The public door of a service."""

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest, metadata, selector

PORT = 8000


def service(inference: InferenceService) -> Manifest:
    """Render the Service of the OpenAI API; the admin port has none."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(inference),
        "spec": {
            "selector": selector(inference.metadata.name),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def url(inference: InferenceService) -> str:
    """Name the base URL that an OpenAI client takes, within the cluster."""
    scheme = "https" if inference.spec.api.tls else "http"
    host = f"{inference.metadata.name}.{inference.metadata.namespace}.svc"
    return f"{scheme}://{host}:{PORT}/v1"
