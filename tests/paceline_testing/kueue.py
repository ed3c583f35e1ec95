"""Kueue's kinds, and the gate that it puts on pods, without Kueue itself."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from local_cluster.cluster import Cluster, listed
from local_cluster.go_binaries import module_folder
from paceline_testing.waiting import wait_until

GATE: Final = "kueue.x-k8s.io/admission"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
_MODULE: Final = (
    "sigs.k8s.io/kueue",
    "v0.17.0",
    "h1:7hzb38M4eKGzYW+CFv2s1L+swzzacUCHOCXxZmAV90I=",
)
_KINDS: Final = ("resourceflavors", "clusterqueues", "localqueues", "workloadpriorityclasses")
_NAME: Final = "gated-as-by-kueue"
# Its webhook's part: a pod with a queue waits until the queue has room.
_POLICY: Final[dict[str, Any]] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicy",
    "metadata": {"name": _NAME},
    "spec": {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "operations": ["CREATE"],
                }
            ]
        },
        "matchConditions": [
            {
                "name": "has-a-queue",
                "expression": f"has(object.metadata.labels) && '{QUEUE}' in object.metadata.labels",
            }
        ],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": "Object{spec: Object.spec{schedulingGates:"
                    f" [Object.spec.schedulingGates{{name: '{GATE}'}}]}}}}"
                },
            }
        ],
    },
}
_BINDING: Final = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "MutatingAdmissionPolicyBinding",
    "metadata": {"name": _NAME},
    "spec": {"policyName": _NAME},
}
_PROBE: Final = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "probe", "labels": {QUEUE: "any"}},
    "spec": {"containers": [{"name": "any", "image": "any"}]},
}


@contextmanager
def kinds_of_kueue(cluster: Cluster) -> Iterator[None]:
    """Kueue's own definitions of what a person declares, and gated pods."""
    folder = module_folder(*_MODULE) / "config" / "components" / "crd" / "bases"
    files = [f"--filename={folder / f'kueue.x-k8s.io_{kind}.yaml'}" for kind in _KINDS]
    cluster.kubectl("apply", "--server-side", *files)
    try:
        cluster.kubectl("wait", "--for=condition=Established", *files)
        cluster.apply([_POLICY, _BINDING])
        wait_until(lambda: _is_gated(cluster), within_s=120, every_s=0.5)
        yield
    finally:
        cluster.kubectl(
            "delete", "--ignore-not-found", "-f", "-", input=listed([_POLICY, _BINDING])
        )
        cluster.kubectl("delete", "--ignore-not-found", "--timeout=60s", *files)


def _is_gated(cluster: Cluster) -> bool:
    """Whether the policy is in force: it takes the API server a moment."""
    dry = ("create", "--dry-run=server", "-ojsonpath={.spec.schedulingGates}", "-f", "-")
    return GATE in cluster.kubectl(*dry, input=json.dumps(_PROBE), check=False)
