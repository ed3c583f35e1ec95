"""CoreDNS in a whole cluster, for guests that find each other by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from local_cluster import network
from local_cluster.base_image import program_image
from local_cluster.cluster import Cluster
from local_cluster.go_binaries import COREDNS, built
from paceline_api.labels import Manifest

_NAMESPACE: Final = "kube-system"
_NAME: Final = "coredns"
_COREFILE: Final = """.:53 {
    errors
    ready
    kubernetes cluster.local in-addr.arpa ip6.arpa
}
"""


def image() -> tuple[str, Path]:
    """Return the reference of CoreDNS' image and its archive, built where the cache lacks it."""
    return program_image(built(COREDNS) / "coredns")


def serve(cluster: Cluster, reference: str) -> None:
    """Run CoreDNS of this image, and wait until it answers."""
    cluster.apply(_objects(reference))
    place, within = f"--namespace={_NAMESPACE}", "--timeout=120s"
    cluster.kubectl("rollout", "status", f"deployment/{_NAME}", place, within)


def _objects(reference: str) -> Iterator[Manifest]:
    named = {"name": _NAME, "namespace": _NAMESPACE}
    account = {"kind": "ServiceAccount", **named}
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": named}
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": _NAME},
        "rules": [
            {
                "apiGroups": [""],
                "resources": ["services", "namespaces"],
                "verbs": ["list", "watch"],
            },
            {
                "apiGroups": ["discovery.k8s.io"],
                "resources": ["endpointslices"],
                "verbs": ["list", "watch"],
            },
        ],
    }
    yield {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": _NAME},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": _NAME,
        },
        "subjects": [account],
    }
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": named,
        "data": {"Corefile": _COREFILE},
    }
    labels = {"k8s-app": _NAME}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": named,
        "spec": {
            "clusterIP": network.DNS,
            "selector": labels,
            "ports": [
                {"name": "udp", "port": 53, "protocol": "UDP"},
                {"name": "tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    }
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": named,
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": _NAME,
                    "dnsPolicy": "Default",
                    "containers": [
                        {
                            "name": _NAME,
                            "image": reference,
                            "args": ["-conf", "/etc/coredns/Corefile"],
                            "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}},
                            "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns"}],
                        }
                    ],
                    "volumes": [{"name": "config", "configMap": {"name": _NAME}}],
                },
            },
        },
    }
