"""The services of the real ramp: one for each autoscaler, and what KEDA reads of it."""

import json
from collections.abc import Mapping
from typing import Any, Final

from autoscale.arms import ORACLE, OURS
from local_cluster.cluster import Cluster
from paceline_testing.examples import documents_of
from paceline_testing.monitored_service import HOME, manifest
from paceline_tuner.service_spec import SLA

FORESEEN: Final = "oracle"
"""The service whose replicas a schedule writes."""
_OURS: Final = "recommended"
_WAITING: Final = "waiting"
ARMS: Final[Mapping[str, str]] = {
    FORESEEN: ORACLE,
    _OURS: OURS,
    _WAITING: "5 waiting requests a pod",
    "in-flight": "requests in flight, by a load test",
}
"""What each service scales on, by the service's name."""
TARGETS: Final = SLA(ttft_p99_ms=4000.0, tpot_p99_ms=400.0)
DOWN_S: Final = 120
_MOST: Final = 6


def create(cluster: Cluster) -> None:
    """Create every service, and wait until one pod of each is ready."""
    targets = {
        "ttft": {"p99": f"{TARGETS.ttft_p99_ms:.0f}ms"},
        "tpot": {"p99": f"{TARGETS.tpot_p99_ms:.0f}ms"},
    }
    for arm in ARMS:
        _apply(cluster, manifest(arm, **targets))
    for arm in ARMS:
        _kubectl(cluster, "wait", "--for=condition=Ready", f"pisvc/{arm}", "--timeout=300s")


def scale(cluster: Cluster, arm: str, replicas: int) -> None:
    """Write the replicas of a service, as an autoscaler does."""
    _kubectl(cluster, "scale", f"pisvc/{arm}", f"--replicas={replicas}")


def hand_to_keda(cluster: Cluster, prometheus: str, in_flight: float) -> None:
    """Create a ScaledObject for each service but the oracle's: the example's, or one like it.

    `in_flight` is how many requests a pod may have, where that is what is read.
    """
    for arm in ARMS:
        if arm != FORESEEN:
            _apply(cluster, _scaled_object(arm, prometheus, in_flight))
            ready = "--for=condition=Ready"
            _kubectl(cluster, "wait", ready, f"scaledobject/{arm}", "--timeout=120s")


def _scaled_object(arm: str, prometheus: str, in_flight: float) -> dict[str, Any]:
    (found,) = documents_of("keda.yaml")
    found["metadata"]["name"] = found["spec"]["scaleTargetRef"]["name"] = arm
    found["spec"]["maxReplicaCount"] = _MOST
    (trigger,) = found["spec"]["triggers"]
    metadata = trigger["metadata"]
    metadata["serverAddress"] = prometheus
    if arm == _OURS:
        metadata["query"] = metadata["query"].replace('"default"', f'"{HOME}"')
        metadata["query"] = metadata["query"].replace('"chat"', f'"{arm}"')
        return found
    metadata["query"], metadata["threshold"] = _peers_way(arm, in_flight)
    # All else is KEDA's default, but for an equal wait before it scales in.
    del found["spec"]["fallback"], metadata["ignoreNullValues"]
    behavior = {"scaleDown": {"stabilizationWindowSeconds": DOWN_S}}
    found["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] = behavior
    return found


def _peers_way(arm: str, in_flight: float) -> tuple[str, str]:
    """Return the query, and how much of its value a pod may have."""
    mine = f'{{namespace="{HOME}",model_name="{arm}"}}'
    waiting = f"vllm:num_requests_waiting{mine}"
    if arm == _WAITING:
        return f"sum({waiting})", "5"
    return f"sum(vllm:num_requests_running{mine} + {waiting})", f"{in_flight:.2f}"


def _apply(cluster: Cluster, found: dict[str, Any]) -> None:
    place = f"--namespace={HOME}"
    cluster.kubectl(place, "apply", "--filename=-", input=json.dumps(found))


def _kubectl(cluster: Cluster, *args: str) -> None:
    cluster.kubectl(f"--namespace={HOME}", *args)
