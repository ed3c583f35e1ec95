"""A service that sleeps and wakes begins with the limits that its last life has proven.

The API server and the operator are real, the pods simulated: nobody has to wait for evidence.
"""

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import pytest

from local_cluster.cluster import Cluster
from paceline_operator.warm_start_map import FILE, NAME
from paceline_sim.sim_pod import SimPod
from paceline_testing.kubelet import make_ready, pod_of
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import running_operator
from paceline_testing.served_pod import ServedPod, served
from paceline_testing.simulated import LAPTOP_LIMITS, a_laptop, clients

pytestmark = pytest.mark.cluster

_NAMESPACE: Final = "woken-tests"
_SERVICE: Final = "sleeper"
_SHARE: Final = 0.9
"""Of limits that were found in an earlier life (docs/tuner.md)."""


@pytest.fixture(scope="module")
def home(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("woken")
    with running_operator(control_plane, _NAMESPACE, folder) as operator:
        yield Home(control_plane, _NAMESPACE, operator)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


def _begin(home: Home, pod: ServedPod) -> None:
    """Let the service's one pod be ready at the address of this one."""
    name = home.until(lambda: pod_of(home.cluster, _NAMESPACE, _SERVICE))
    make_ready(home.cluster, _NAMESPACE, name, podIP=pod.ip, podIPs=[{"ip": pod.ip}])


def _changes(pod: ServedPod) -> list[dict[str, Any]]:
    """Every change of its limits, the renewals of their lease left out."""
    return [body for body in [*pod.pod.bodies] if "max_batch_size" in body]


def _has_proven(home: Home) -> bool:
    """Whether limits that keep the SLA are stored."""
    text = ((home.get("configmap", NAME) or {}).get("data") or {}).get(FILE)
    return bool(text and json.loads(text)["entries"])


def test_a_pod_that_wakes_starts_with_the_limits_of_the_last_life(home: Home) -> None:
    """Its engine has seen no request yet, and its first limits are not those of its capacity."""
    load = clients(2.5, prompt=(8, 16), output=(32, 64), seconds=3600)
    loaded = SimPod(a_laptop(load, shed_ttft_ms=5000.0), engine_version="1")
    asleep = SimPod(a_laptop(clients(0.0)), engine_version="1")

    home.serve(_SERVICE, sla={"tpot": {"p99": "150ms"}}, tuning={"interval": "1s"})
    with served(loaded, pace=5.0) as before:
        _begin(home, before)
        home.until(lambda: _has_proven(home))
        home.kubectl("scale", f"pisvc/{_SERVICE}", "--replicas=0")
        home.until(lambda: home.condition(_SERVICE, "Ready").get("reason") == "ScaledToZero")
        home.until(lambda: not pod_of(home.cluster, _NAMESPACE, _SERVICE))
        held = {body["max_batch_size"] for body in _changes(before)}
    with served(asleep, number=1) as after:
        home.kubectl("scale", f"pisvc/{_SERVICE}", "--replicas=1")
        _begin(home, after)
        home.until(lambda: _changes(after))
        first = _changes(after)[0]

    assert "coefficients" in first
    assert first["max_batch_size"] < LAPTOP_LIMITS.max_batch_size
    assert first["max_batch_size"] in {math.ceil(_SHARE * size) for size in held}
