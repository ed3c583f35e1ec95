"""Who may reach the pods of a service."""

from typing import Any

from paceline_api.inference_service import GROUP, InferenceService
from paceline_api.labels import Manifest, metadata, selector
from paceline_api.placement import Peer

_NAMESPACE_NAME = "kubernetes.io/metadata.name"
# Put on a namespace by whoever runs Prometheus there.
_MAY_SCRAPE = f"{GROUP}/metrics"


def network_policy(service: InferenceService, *, operator_namespace: str) -> Manifest | None:
    """Render the policy: callers to port 8000, the operator and scrapers of metrics to 8001.

    Port 8001 asks for a bearer token for everything but health and metrics.
    The kubelet's probes come from the node, which no policy keeps out.
    """
    network = service.spec.network
    if network.policy == "None":
        return None
    callers: dict[str, Any] = {"ports": [{"port": "http", "protocol": "TCP"}]}
    if network.allow_from is not None:
        callers["from"] = [_peer(peer) for peer in network.allow_from]
    operator = {
        "from": [
            {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: operator_namespace}}},
            {"namespaceSelector": {"matchLabels": {_MAY_SCRAPE: "allowed"}}},
        ],
        "ports": [{"port": "admin", "protocol": "TCP"}],
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(service),
        "spec": {
            "podSelector": {"matchLabels": selector(service.metadata.name)},
            "policyTypes": ["Ingress"],
            "ingress": [callers, operator] if network.allow_from != [] else [operator],
        },
    }


def _peer(peer: Peer) -> Manifest:
    out: Manifest = {}
    if peer.namespace_labels is not None:
        out["namespaceSelector"] = {"matchLabels": peer.namespace_labels}
    if peer.pod_labels is not None or not out:
        out["podSelector"] = {"matchLabels": peer.pod_labels or {}}
    return out
