"""What gateways are told of one service: Envoy Gateway's policy, a pool for endpoint pickers."""

import math
from typing import Any, Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import LOAD_REPORT_PORT, Manifest, metadata, selector
from paceline_api.units import seconds

ENVOY_GATEWAY: Final = "gateway.envoyproxy.io/v1alpha1"
"""The API of Envoy Gateway, where a cluster has it."""
INFERENCE_EXTENSION: Final = "inference.networking.k8s.io/v1"
"""The API of the Gateway API's inference extension, where a cluster has it."""
_MARGIN_S: Final = 10
"""So much longer than the service the gateway waits: the service's answer says why it ends."""


def traffic_policy(service: InferenceService) -> Manifest | None:
    """Render the policy of the routes that carry the service's label; None where none is asked for.

    The same as examples/gateway/balance.yaml, and a request timeout, which Envoy Gateway takes
    where a route sets none.
    """
    if service.spec.api.gateway != "EnvoyGateway":
        return None
    route = {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute"}
    timeout_s = math.ceil(seconds(service.spec.admission.request_timeout)) + _MARGIN_S
    return _child(
        service,
        ENVOY_GATEWAY,
        "BackendTrafficPolicy",
        {
            "targetSelectors": [route | {"matchLabels": selector(service.metadata.name)}],
            # What a policy of the Gateway says besides, such as a limit of tokens, holds as well.
            "mergeType": "StrategicMerge",
            "loadBalancer": {
                "type": "BackendUtilization",
                "backendUtilization": {
                    "blackoutPeriod": "10s",
                    "weightUpdatePeriod": "1s",
                    "weightExpirationPeriod": "180s",
                    # Besides the reports in answers. Pods from before they listened there keep
                    # to those alone, and Envoy takes both.
                    "outOfBand": {"port": LOAD_REPORT_PORT, "reportingPeriod": "1s"},
                },
            },
            # A 503 comes before any part of an answer; a 429 is the client's to keep.
            "retry": {
                "numRetries": 2,
                "retryOn": {
                    "triggers": [
                        "connect-failure",
                        "refused-stream",
                        "reset-before-request",
                        "retriable-status-codes",
                    ],
                    "httpStatusCodes": [503],
                },
            },
            "timeout": {
                "http": {
                    # Below the 75 s after which a pod closes an idle connection.
                    "connectionIdleTimeout": "60s",
                    "requestTimeout": f"{timeout_s}s",
                }
            },
        },
    )


def inference_pool(service: InferenceService) -> Manifest | None:
    """Render the pool of the service's pods; None where none is asked for."""
    pool = service.spec.api.inference_pool
    if pool is None:
        return None
    picker = pool.endpoint_picker_ref
    return _child(
        service,
        INFERENCE_EXTENSION,
        "InferencePool",
        {
            "selector": {"matchLabels": selector(service.metadata.name)},
            "targetPorts": [{"number": 8000}],
            "endpointPickerRef": {
                "name": picker.name,
                "port": {"number": picker.port.number},
                "failureMode": picker.failure_mode,
            },
        },
    )


def _child(service: InferenceService, version: str, kind: str, spec: dict[str, Any]) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": metadata(service), "spec": spec}
