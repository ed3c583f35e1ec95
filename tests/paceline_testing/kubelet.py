"""Play the kubelet on a cluster that has no node."""

import json
from typing import Any

from local_cluster.cluster import Cluster


def pod_of(cluster: Cluster, namespace: str, service: str) -> str:
    """Name the one pod of a service; empty while there is none."""
    query = ("-l", f"serving.paceline.dev/service={service}", "-o", "name")
    return cluster.kubectl("-n", namespace, "get", "pods", *query).strip().removeprefix("pod/")


def bind(cluster: Cluster, namespace: str, pod: str) -> None:
    """Give the pod to a node that nobody has heard of."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/binding"
    cluster.kubectl("create", "--raw", path, "-f", "-", input=json.dumps(binding))


def patch_status(cluster: Cluster, namespace: str, pod: str, status: dict[str, Any]) -> None:
    """Report the pod's state; conditions are merged by their type."""
    body = json.dumps({"status": status})
    cluster.kubectl("-n", namespace, "patch", "pod", pod, "--subresource=status", "-p", body)


def make_ready(cluster: Cluster, namespace: str, pod: str, **status: Any) -> None:
    """Report that both containers run; `status` adds to it, such as an address."""
    base = {"ready": True, "restartCount": 0, "image": "i", "imageID": "i@sha256:1"}
    running = base | {"state": {"running": {}}}
    serving = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "engine"} | running],
        "initContainerStatuses": [{"name": "sidecar"} | running],
    }
    patch_status(cluster, namespace, pod, serving | status)


def hold_up(cluster: Cluster, namespace: str, pod: str, note: str) -> None:
    """Take the pod, and fail to mount its volumes for the reason that `note` gives."""
    bind(cluster, namespace, pod)
    waiting = [{"type": "PodReadyToStartContainers", "status": "False"}]
    patch_status(cluster, namespace, pod, {"conditions": waiting})
    uid = cluster.kubectl("-n", namespace, "get", "pod", pod, "-ojsonpath={.metadata.uid}")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{pod}.failed-mount"},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": pod,
            "namespace": namespace,
            "uid": uid,
        },
        "type": "Warning",
        "reason": "FailedMount",
        "message": note,
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "source": {"component": "kubelet"},
    }
    cluster.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(event))


def remove(cluster: Cluster, namespace: str, pod: str) -> None:
    """Let go of a pod that no kubelet will ever end."""
    cluster.kubectl(
        "-n", namespace, "delete", "pod", pod, "--force", "--grace-period=0", "--ignore-not-found"
    )
