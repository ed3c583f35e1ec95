"""The operator with processes of the tuner beside it, on a real API server."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from local_cluster.cluster import Cluster
from paceline_sim.sim_pod import SimPod
from paceline_testing.kubelet import make_ready, pod_of
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import running_operator
from paceline_testing.served_pod import ServedPod, served
from paceline_testing.simulated import a_laptop, clients

pytestmark = pytest.mark.cluster

_NAMESPACE = "shards-tests"
_PROCESSES = 2


@pytest.fixture(scope="module")
def home(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("shards")
    settings = {"PACELINE_OPERATOR_TUNER_PROCESSES": str(_PROCESSES)}
    with running_operator(control_plane, _NAMESPACE, folder, settings=settings) as operator:
        yield Home(control_plane, _NAMESPACE, operator)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture
def pod() -> Iterator[ServedPod]:
    with served(SimPod(a_laptop(clients(0.8)))) as found:
        yield found


def _children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def test_a_pod_is_tuned_on_when_the_processes_are_killed(home: Home, pod: ServedPod) -> None:
    """From the watch over the process to the pod, and back to the status."""
    home.serve("tuned")
    name = home.until(lambda: pod_of(home.cluster, _NAMESPACE, "tuned"))
    make_ready(home.cluster, _NAMESPACE, name, podIP=pod.ip, podIPs=[{"ip": pod.ip}])

    def tuned() -> bool:
        status = (home.get("pisvc", "tuned") or {}).get("status", {})
        pods = status.get("tuning", {}).get("pods", [])
        return [each["name"] for each in pods] == [name] and "observedConfigHash" in status

    def ends(shard: int) -> float:
        labels = f'{{reason="ended",shard="{shard}"}}'
        return home.operator.metric(f"paceline_operator_shard_ends_total{labels}")

    home.until(tuned)
    processes = home.until(
        lambda: len(found := _children(home.operator.pid)) == _PROCESSES and found
    )
    for process in processes:
        os.kill(process, signal.SIGKILL)
    before = len(pod.pod.bodies)
    home.kubectl("patch", "pisvc/tuned", "--type=merge", "-p", '{"spec":{"paused":true}}')

    home.until(lambda: len(_children(home.operator.pid) - processes) == _PROCESSES)
    home.until(lambda: len(pod.pod.bodies) > before)
    home.until(lambda: home.operator.metric("paceline_operator_services_untuned") == 0.0)
    assert [ends(shard) for shard in range(_PROCESSES)] == [1.0] * _PROCESSES
