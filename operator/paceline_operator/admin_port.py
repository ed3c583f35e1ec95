"""Where a pod's runtime API is, and how the operator knows that it talks to that pod."""

from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_operator.observe import ObservedPod
from paceline_tuner.service_target import PodTarget

_PORT: Final = 8001


def admin_target(service: InferenceService, pod: ObservedPod, *, token: str) -> PodTarget:
    """Address a pod as it is, not as the spec wants the next one.

    A pod that speaks TLS while the spec names nothing to verify it by has an empty `ca_bundle`:
    nobody's certificate is trusted, so it gets no token until its successor takes its place.
    """
    host = f"[{pod.ip}]" if ":" in pod.ip else pod.ip
    return PodTarget(
        name=pod.name,
        admin_url=f"{'https' if pod.admin_tls else 'http'}://{host}:{_PORT}",
        token=token,
        node=pod.node,
        is_canary=pod.is_canary,
        ca_bundle=service.ca_bundle if pod.admin_tls else "",
        server_name=service.server_name,
    )
