"""What guards a service: its account without rights, and the token of its runtime API."""

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest, metadata, secret_name


def service_account(service: InferenceService) -> Manifest:
    """Render an account that no role binds and whose token no pod mounts."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(service),
        "automountServiceAccountToken": False,
    }


def token_secret(service: InferenceService, token: str) -> Manifest:
    """Render the Secret that operator and sidecars share."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(service, secret_name(service.metadata.name)),
        "type": "Opaque",
        "stringData": {"token": token},
    }
