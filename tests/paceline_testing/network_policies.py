"""Whether NetworkPolicies let one pod reach another, by the rules of networking.k8s.io/v1.

A cluster needs a network that enforces them, which ours has not. What is here are the rules that
all such networks share: a pod is isolated in a direction once a policy for it names that direction,
and then only what some rule of some policy lists may pass; both ends must let a connection pass.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

Policy = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class End:
    """A pod of the cluster, or an address outside it where `namespace` is empty."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Its named ports."""
    ip: str = "10.88.0.9"


def allows(
    policies: Sequence[Policy], client: End, server: End, port: int, protocol: str = "TCP"
) -> bool:
    """Whether a connection from one end to a port of the other passes."""

    def passes(direction: str, here: End, there: End) -> bool:
        bound = [policy["spec"] for policy in policies if _is_bound(policy, here, direction)]
        key = "from" if direction == "Ingress" else "to"
        rules = [rule for spec in bound for rule in spec.get(direction.lower()) or ()]
        return not bound or any(
            _has_peer(rule.get(key), there, here)
            and _has_port(rule.get("ports"), server, port, protocol)
            for rule in rules
        )

    return passes("Egress", client, server) and passes("Ingress", server, client)


def _is_bound(policy: Policy, end: End, direction: str) -> bool:
    spec = policy["spec"]
    types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
    return (
        policy["metadata"]["namespace"] == end.namespace
        and _matches(spec["podSelector"], end.labels)
        and direction in types
    )


def _has_peer(peers: Sequence[Policy] | None, there: End, here: End) -> bool:
    """An absent or empty list is everyone."""
    return not peers or any(_is_peer(peer, there, here) for peer in peers)


def _is_peer(peer: Policy, there: End, here: End) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        address = ip_address(there.ip)
        inside = address in ip_network(block["cidr"])
        return inside and not any(address in ip_network(one) for one in block.get("except") or ())
    if not there.namespace:
        return False
    if "namespaceSelector" not in peer:
        is_in = there.namespace == here.namespace
    else:
        name = {"kubernetes.io/metadata.name": there.namespace}
        is_in = _matches(peer["namespaceSelector"], {**there.namespace_labels, **name})
    return is_in and _matches(peer.get("podSelector") or {}, there.labels)


def _has_port(ports: Sequence[Policy] | None, server: End, port: int, protocol: str) -> bool:
    """An absent or empty list is every port; a name is one of the server's."""
    return not ports or any(
        one.get("protocol", "TCP") == protocol
        and server.ports.get(str(one.get("port")), one.get("port")) in {None, port}
        for one in ports
    )


def _matches(selector: Policy, labels: Mapping[str, str]) -> bool:
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _meets(one, labels) for one in selector.get("matchExpressions") or ()
    )


def _meets(expression: Policy, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]
