"""The examples of placement, applied as they are: the API server takes them, the scheduler acts.

Nodes are objects without a kubelet. Device plugins, the DRA driver and Kueue are played by what
they write: amounts of a node, ResourceSlices, a scheduling gate.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from local_cluster.cluster import Cluster, listed
from paceline_api.inference_service import KIND
from paceline_api.labels import Manifest
from paceline_testing.bare_node import BareNode, bare_node
from paceline_testing.examples import documents_of
from paceline_testing.kubelet import remove
from paceline_testing.kueue import kinds_of_kueue
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import running_operator

pytestmark = pytest.mark.cluster

_NAMESPACE = "placement"
_GPU = "nvidia.com/gpu"
_DRIVER = "gpu.nvidia.com"
_ZONE = "topology.kubernetes.io/zone"


@pytest.fixture(scope="module")
def home(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("placement")
    with running_operator(control_plane, _NAMESPACE, folder) as operator:
        yield Home(control_plane, _NAMESPACE, operator)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture
def node(control_plane: Cluster, request: pytest.FixtureRequest) -> Iterator[BareNode]:
    """A node of this test alone."""
    name = request.node.name.split("[")[0].removeprefix("test_").replace("_", "-")[:50]
    with bare_node(control_plane, name.rstrip("-")) as node:
        yield node


@pytest.fixture
def applied() -> Iterator[ExitStack]:
    """What is to be deleted in the end."""
    with ExitStack() as stack:
        yield stack


def _apply(home: Home, applied: ExitStack, *objects: Manifest) -> None:
    text = listed(objects)
    home.kubectl("apply", "-f", "-", input=text)
    applied.callback(
        home.kubectl, "delete", "--ignore-not-found", "--wait=false", "-f", "-", input=text
    )


def _apply_example(home: Home, applied: ExitStack, name: str, node: BareNode) -> None:
    """Apply it with its services bound to the test's nodes."""
    objects = documents_of(f"placement/{name}.yaml")
    for each in objects:
        if each["kind"] == KIND:
            each["spec"]["scheduling"] = each["spec"].get("scheduling", {}) | node.scheduling
    _apply(home, applied, *objects)


def _pods(home: Home, service: str) -> list[Manifest]:
    label = f"serving.paceline.dev/service={service}"
    found: list[Manifest] = json.loads(home.kubectl("get", "pods", "-l", label, "-ojson"))["items"]
    return found


def _nodes(home: Home, service: str) -> list[str]:
    """Name the node of each pod that has one."""
    pods = _pods(home, service)
    return [pod["spec"]["nodeName"] for pod in pods if "nodeName" in pod["spec"]]


def _lacks(home: Home, service: str, reason: str) -> None:
    home.until(lambda: home.condition(service, "WorkloadAvailable").get("reason") == reason)


@pytest.mark.parametrize(
    ("example", "service", "resource"),
    [
        ("mig", "sliced", "nvidia.com/mig-1g.10gb"),
        ("time-slicing", "shared", "nvidia.com/gpu.shared"),
    ],
)
def test_a_part_of_a_gpu_is_scheduled_by_its_name(
    home: Home, applied: ExitStack, node: BareNode, *, example: str, service: str, resource: str
) -> None:
    """Whole GPUs do not help: the name is another."""
    node.give(**{_GPU: "8"})
    _apply_example(home, applied, example, node)
    _lacks(home, service, "InsufficientGPU")

    node.give(**{resource: "2"})

    home.until(lambda: _nodes(home, service) == [node.name] * 2)


def _class(**more: str) -> Manifest:
    expression = f"device.driver == '{_DRIVER}'"
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": _DRIVER},
        "spec": {"selectors": [{"cel": {"expression": expression}}], **more},
    }


def _slice(node: BareNode, **memory: str) -> Manifest:
    """What a driver says of the GPUs of its node, by their names."""
    devices = [
        {"name": name, "capacity": {"memory": {"value": amount}}} for name, amount in memory.items()
    ]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node.name}-gpus"},
        "spec": {
            "driver": _DRIVER,
            "nodeName": node.name,
            "pool": {"name": node.name, "generation": 1, "resourceSliceCount": 1},
            "devices": devices,
        },
    }


def _claims(home: Home) -> list[Manifest]:
    found: list[Manifest] = json.loads(home.kubectl("get", "resourceclaims", "-ojson"))["items"]
    return found


def _devices(claim: Manifest) -> list[str]:
    allocation = claim.get("status", {}).get("allocation", {})
    return [result["device"] for result in allocation.get("devices", {}).get("results", ())]


def test_each_pod_claims_a_gpu_that_is_large_enough(
    home: Home, applied: ExitStack, node: BareNode
) -> None:
    """The small one is left; the second pod waits for another large one."""
    _apply(home, applied, _class(), _slice(node, large="80Gi", small="24Gi"))
    _apply_example(home, applied, "claims", node)
    _lacks(home, "claimed", "InsufficientGPU")
    home.until(lambda: len(_nodes(home, "claimed")) == 1)

    _apply(home, applied, _slice(node, large="80Gi", small="24Gi", other="40Gi"))
    home.until(lambda: _nodes(home, "claimed") == [node.name] * 2)

    own = [claim for claim in _claims(home) if claim["metadata"]["name"].startswith("claimed-")]
    assert sorted(device for claim in own for device in _devices(claim)) == ["large", "other"]


def test_two_services_share_the_gpu_of_one_claim(
    home: Home, applied: ExitStack, node: BareNode
) -> None:
    """There is one GPU, and both have it."""
    _apply(home, applied, _class(), _slice(node, only="80Gi"))
    _apply_example(home, applied, "shared-claim", node)

    home.until(lambda: _nodes(home, "writes") == _nodes(home, "ranks") == [node.name])

    (claim,) = [each for each in _claims(home) if each["metadata"]["name"] == "team-gpu"]
    assert _devices(claim) == ["only"]
    users = {pod["metadata"]["name"] for pod in (*_pods(home, "writes"), *_pods(home, "ranks"))}
    assert {each["name"] for each in claim["status"]["reservedFor"]} == users


def test_a_class_may_stand_for_a_resource_of_a_device_plugin(
    home: Home, applied: ExitStack, node: BareNode
) -> None:
    """A service that asks for `nvidia.com/gpu` stays as it is where a driver replaces a plugin."""
    _apply(home, applied, _class(extendedResourceName=_GPU), _slice(node, only="80Gi"))
    home.serve("plain", scheduling=node.scheduling, resources={"gpu": {"count": 1}})
    applied.callback(home.kubectl, "delete", "pisvc/plain", "--wait=false")

    home.until(lambda: _nodes(home, "plain") == [node.name])

    (pod,) = _pods(home, "plain")
    made = pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]
    (claim,) = [each for each in _claims(home) if each["metadata"]["name"] == made]
    assert _devices(claim) == ["only"]


def _waits(node: BareNode) -> Manifest:
    """A pod that has the node's GPU and can wait."""
    one: dict[str, Any] = {"limits": {_GPU: "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "waits"},
        "spec": {"containers": [{"name": "any", "image": "any", "resources": one}]}
        | node.scheduling,
    }


def test_a_service_goes_before_what_can_wait(
    home: Home, applied: ExitStack, node: BareNode
) -> None:
    """Without its runtime class no pod is made; then the scheduler takes the GPU for it."""
    node.give(**{_GPU: "1"})
    _apply(home, applied, _waits(node))
    home.until(lambda: (home.get("pod", "waits") or {})["spec"].get("nodeName") == node.name)
    _apply_example(home, applied, "priority", node)
    _lacks(home, "urgent", "RolloutBlocked")
    blocked = home.condition("urgent", "WorkloadAvailable")["message"]

    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    _apply(home, applied, runtime)
    home.until(lambda: "deletionTimestamp" in (home.get("pod", "waits") or {})["metadata"])
    remove(home.cluster, home.namespace, "waits")
    home.until(lambda: _nodes(home, "urgent") == [node.name])

    assert 'RuntimeClass "nvidia" not found' in blocked
    (pod,) = _pods(home, "urgent")
    assert pod["spec"]["priority"] == 100_000
    assert pod["spec"]["runtimeClassName"] == "nvidia"


def test_pods_go_to_every_zone(home: Home, applied: ExitStack) -> None:
    """Two nodes of a zone are one place to lose."""
    with ExitStack() as nodes:
        for name in ("zonal-a-1", "zonal-a-2", "zonal-b-1", "zonal-c-1"):
            zone = {_ZONE: name.split("-")[1]}
            node = nodes.enter_context(bare_node(home.cluster, name, only="zonal", labels=zone))
        _apply_example(home, applied, "zones", node)

        home.until(lambda: len(_nodes(home, "zonal")) == 3)

        assert {name.split("-")[1] for name in _nodes(home, "zonal")} == {"a", "b", "c"}


def test_pods_wait_in_the_queue_that_they_name(home: Home, node: BareNode) -> None:
    """Kueue's definitions take what the example declares; its gate is no trouble, and is named."""
    node.give(**{_GPU: "2"})
    with kinds_of_kueue(home.cluster), ExitStack() as queues:
        _apply_example(home, queues, "kueue", node)
        _lacks(home, "queued", "SchedulingGated")
        message = home.condition("queued", "WorkloadAvailable")["message"]
        queue = home.get("localqueue", "team-a") or {}
        waiting = _nodes(home, "queued")

        for pod in _pods(home, "queued"):
            admit = ("--type=json", "-p", '[{"op": "remove", "path": "/spec/schedulingGates"}]')
            home.kubectl("patch", "pod", pod["metadata"]["name"], *admit)
        home.until(lambda: _nodes(home, "queued") == [node.name] * 2)

    assert message.endswith("waits for kueue.x-k8s.io/admission")
    assert queue["spec"]["clusterQueue"] == "serving"
    assert waiting == []
