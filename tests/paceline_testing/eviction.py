"""Pods are asked to leave as `kubectl drain` does, and as whoever answers a provider's notice."""

import json
from typing import Any

from local_cluster.cluster import Cluster


def evict(
    cluster: Cluster, name: str, namespace: str = "default", *, grace_s: int | None = None
) -> bool:
    """Ask for it; False where the budget does not allow it yet.

    `grace_s` replaces the pod's own grace. A pod that is gone by then, as one that was leaving may
    be, needs no eviction.
    """
    eviction: dict[str, Any] = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
    }
    if grace_s is not None:
        eviction["deleteOptions"] = {"gracePeriodSeconds": grace_s}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    done = cluster.try_kubectl("create", f"--raw={path}", "-f-", input=json.dumps(eviction))
    is_over = done.returncode == 0 or "(NotFound)" in done.stderr
    assert is_over or "disruption budget" in done.stderr, done.stderr
    return is_over
