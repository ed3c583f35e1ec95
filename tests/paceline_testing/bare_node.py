"""A node that is an object and nothing else: it gets pods, and no kubelet runs them."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final

from local_cluster.cluster import Cluster

ONLY: Final = "only"
"""Label and taint by which such a node takes the pods of one test alone."""
_ROOM: Final = {"cpu": "64", "memory": "256Gi", "pods": "110"}
_NO_LABELS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class BareNode:
    """One such node."""

    cluster: Cluster
    name: str
    only: str

    def give(self, **more: str) -> None:
        """Say what it has beside CPU, memory and room for pods, as its device plugins would."""
        has = _ROOM | more
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "KubeletReady",
            "lastHeartbeatTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        status = {"capacity": has, "allocatable": has, "conditions": [ready]}
        patch = json.dumps({"status": status})
        self.cluster.kubectl("patch", "node", self.name, "--subresource=status", "-p", patch)

    @property
    def scheduling(self) -> dict[str, Any]:
        """What a pod says to get here, whatever controllers say of a node without a kubelet."""
        return {"nodeSelector": {ONLY: self.only}, "tolerations": [{"operator": "Exists"}]}


@contextmanager
def bare_node(
    cluster: Cluster, name: str, *, only: str = "", labels: Mapping[str, str] = _NO_LABELS
) -> Iterator[BareNode]:
    """Make it; `only` names whose pods it takes, its own when empty."""
    taken = only or name
    manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {ONLY: taken, **labels}},
        "spec": {"taints": [{"key": ONLY, "value": taken, "effect": "NoSchedule"}]},
    }
    cluster.kubectl("create", "-f", "-", input=json.dumps(manifest))
    node = BareNode(cluster, name, taken)
    try:
        node.give()
        yield node
    finally:
        cluster.kubectl("delete", "node", name, "--ignore-not-found")
