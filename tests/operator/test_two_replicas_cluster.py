"""Two replicas share the tuner's shards before a real API server; one is killed."""

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import pytest

from local_cluster.cluster import Cluster
from paceline_operator.sharding.shares import shard_of
from paceline_sim.sim_pod import SimPod
from paceline_testing.kubelet import make_ready, pod_of
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import RunningOperator, running_operator
from paceline_testing.served_pod import ServedPod, served
from paceline_testing.simulated import a_laptop, clients

pytestmark = pytest.mark.cluster

_NAMESPACE: Final = "replicas-tests"
_SHARDS: Final = 2
_SETTINGS: Final = {
    "PACELINE_OPERATOR_TUNER_PROCESSES": str(_SHARDS),
    "PACELINE_OPERATOR_POD_IP": "127.0.0.1",
}


@pytest.fixture(scope="module")
def replicas(
    control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningOperator, RunningOperator]]:
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--ignore-not-found", "--wait")
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("replicas")
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(
                running_operator(control_plane, _NAMESPACE, folder, settings=_SETTINGS)
            )
            for _ in range(2)
        )
        yield first, second
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture
def pods() -> Iterator[list[ServedPod]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(served(SimPod(a_laptop(clients(0.8))), number))
            for number in range(_SHARDS)
        ]


def _owned(operator: RunningOperator) -> list[int]:
    name = "paceline_operator_shard_owned"
    return [
        number for number in range(_SHARDS) if operator.metric(f'{name}{{shard="{number}"}}') == 1.0
    ]


def _a_service_in(home: Home, shard: int) -> str:
    """Make services until one falls to this shard: which one is for the API server to say."""
    for number in range(100):
        name = f"s{shard}-{number}"
        home.serve(name)
        found = home.get("pisvc", name)
        assert found is not None
        if shard_of(found["metadata"]["uid"], _SHARDS) == shard:
            return name
        home.kubectl("delete", "pisvc", name)
    raise AssertionError(f"no uid of a hundred falls to shard {shard}")


def _decided_for(operator: RunningOperator, home: Home) -> set[str]:
    """Name what the decisions are tagged with, that this replica shows."""
    wanted = "go-template={{.data.token | base64decode}}"
    token = home.kubectl("get", "secret", "paceline-operator-decisions-token", "-o", wanted)
    request = urllib.request.Request(
        operator.url + "/decisions", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return {tag for mark in json.loads(answer.read()) for tag in mark["tags"]}


def _is_tuned(home: Home, name: str) -> bool:
    status = (home.get("pisvc", name) or {}).get("status", {})
    return bool(status.get("tuning", {}).get("pods")) and "observedConfigHash" in status


def _is_paused(home: Home, name: str) -> bool:
    return home.condition(name, "TuningActive").get("reason") == "Paused"


def test_what_one_replica_tuned_another_takes_over(
    control_plane: Cluster,
    replicas: tuple[RunningOperator, RunningOperator],
    pods: list[ServedPod],
) -> None:
    """Both tune, the leader writes of both; it is killed, and the other does all of it."""
    leader, other = replicas
    home = Home(control_plane, _NAMESPACE, other)
    home.until(lambda: len(_owned(leader)) == len(_owned(other)) == 1)
    assert leader.metric("paceline_operator_is_leader") == 1.0
    names = [_a_service_in(home, shard) for shard in (*_owned(leader), *_owned(other))]
    for name, pod in zip(names, pods, strict=True):
        made = home.until(partial(pod_of, control_plane, _NAMESPACE, name))
        make_ready(control_plane, _NAMESPACE, made, podIP=pod.ip, podIPs=[{"ip": pod.ip}])

    for name in names:
        home.until(partial(_is_tuned, home, name))
    assert other.metric('paceline_operator_tuning_rounds_total{result="ok"}') > 0.0
    shown = {f"{_NAMESPACE}/{name}" for name in names}
    home.until(lambda: shown <= _decided_for(leader, home))
    home.until(lambda: shown <= _decided_for(other, home))
    assert leader.metric("paceline_operator_services_untuned") == 0.0

    os.kill(leader.pid, signal.SIGKILL)
    home.until(lambda: len(_owned(other)) == _SHARDS)
    home.until(lambda: other.metric("paceline_operator_is_leader") == 1.0)
    told = [len(pod.pod.bodies) for pod in pods]
    for name in names:
        home.kubectl("patch", f"pisvc/{name}", "--type=merge", "-p", '{"spec":{"paused":true}}')

    home.until(lambda: all(len(p.pod.bodies) > n for p, n in zip(pods, told, strict=True)))
    for name in names:
        home.until(partial(_is_paused, home, name))
    home.until(lambda: other.metric("paceline_operator_services_untuned") == 0.0)
