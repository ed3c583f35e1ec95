"""Who may reach the pods of a service, and whom they may reach."""

from typing import Any, Final
from urllib.parse import urlsplit

from paceline_api.inference_service import GROUP, InferenceService
from paceline_api.labels import LOAD_REPORT_PORT, Manifest, metadata, selector
from paceline_api.placement import Peer

_NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
# Put on a namespace by whoever runs Prometheus there.
_MAY_SCRAPE: Final = f"{GROUP}/metrics"
# As the chart labels it.
_OPERATOR: Final = {
    "app.kubernetes.io/part-of": "paceline",
    "app.kubernetes.io/component": "operator",
}
_EVERYONE: Final = frozenset({"0.0.0.0/0", "::/0"})
_DOWNLOADED: Final = ("hf://", "s3://")
_HTTPS: Final = 443
# 5353: policies see the port of the DNS server's pod, which on OpenShift is another.
_DNS_PORTS: Final = (53, 5353)
# Variables of the engine that name where it downloads from, or through what.
_ENDPOINTS: Final = frozenset({"HF_ENDPOINT", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"})


def network_policy(service: InferenceService, *, operator_namespace: str) -> Manifest | None:
    """Render the policy: callers to ports 8000 and 8002, operator and scrapers of metrics to 8001.

    Port 8001 asks for a bearer token for everything but health and metrics.
    The kubelet's probes come from the node, which no policy keeps out.
    """
    network = service.spec.network
    if network.policy == "None":
        return None
    is_bound = network.egress == "ModelSource"
    # The API server drops an empty list, and would write the object again at each apply: where the
    # type is named without a rule, nothing may leave either.
    egress = _to_model_source(service) if is_bound else []
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(service),
        "spec": {
            "podSelector": {"matchLabels": selector(service.metadata.name)},
            "policyTypes": ["Ingress", "Egress"] if is_bound else ["Ingress"],
            "ingress": [*_callers(network.allow_from), _admin(operator_namespace)],
            **({"egress": egress} if egress else {}),
        },
    }


def _callers(allowed: list[Peer] | None) -> list[Manifest]:
    """Let in who may call; the service's own namespace where nobody is named.

    Who balances requests may hear of the load, too.
    """
    if allowed == []:
        return []
    rule: Manifest = {
        "ports": [{"port": "http", "protocol": "TCP"}, _port(LOAD_REPORT_PORT, "TCP")]
    }
    peers = [Peer()] if allowed is None else allowed
    # Not as a block of addresses: some networks let such a block match no pods.
    if not any(peer.cidr in _EVERYONE for peer in peers):
        rule["from"] = [_peer(peer) for peer in peers]
    return [rule]


def _admin(operator_namespace: str) -> Manifest:
    operators = {
        "namespaceSelector": {"matchLabels": {_NAMESPACE_NAME: operator_namespace}},
        "podSelector": {"matchLabels": _OPERATOR},
    }
    return {
        "from": [operators, {"namespaceSelector": {"matchLabels": {_MAY_SCRAPE: "allowed"}}}],
        "ports": [{"port": "admin", "protocol": "TCP"}],
    }


def _peer(peer: Peer) -> Manifest:
    if peer.cidr is not None:
        return {"ipBlock": {"cidr": peer.cidr}}
    out: Manifest = {}
    if peer.namespace_labels is not None:
        out["namespaceSelector"] = _selector(peer.namespace_labels)
    if peer.pod_labels is not None or not out:
        out["podSelector"] = _selector(peer.pod_labels or {})
    return out


def _selector(wanted: dict[str, str]) -> Manifest:
    """Select by labels, or everything: a map without an entry would be dropped as a list is."""
    return {"matchLabels": wanted} if wanted else {}


def _to_model_source(service: InferenceService) -> list[Manifest]:
    """Let the engine download what the spec names; a pod that downloads nothing reaches nobody.

    Images and volumes are fetched by the node, not by the pod.
    """
    spec = service.spec
    uris = [
        spec.model.uri,
        spec.engine.speculative.draft_model_uri or "",
        *(adapter.uri for adapter in spec.adapters or ()),
    ]
    if not any(uri.startswith(_DOWNLOADED) for uri in uris):
        return []
    ports = sorted({_HTTPS, *_endpoint_ports(service)})
    return [
        {"ports": [_port(number, kind) for number in _DNS_PORTS for kind in ("UDP", "TCP")]},
        {"ports": [_port(number, "TCP") for number in ports]},
    ]


def _endpoint_ports(service: InferenceService) -> set[int]:
    """Find the ports of a mirror or proxy that the spec gives to the engine."""
    found = set()
    for variable in service.spec.pod_overrides.env or ():
        if variable.name.upper() in _ENDPOINTS and (port := _port_of(variable.value)):
            found.add(port)
    return found


def _port_of(endpoint: str) -> int | None:
    """Read the port of `http://host:port`; None where there is none to read."""
    try:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        return parts.port or {"http": 80, "https": _HTTPS, "socks5": 1080}.get(parts.scheme)
    except ValueError:
        return None


def _port(number: int, protocol: str) -> dict[str, Any]:
    return {"port": number, "protocol": protocol}
