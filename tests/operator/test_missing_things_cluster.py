"""What only the cluster knows is missing becomes a condition, and goes once it is there."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from local_cluster.cluster import Cluster
from paceline_sidecar.errors import Unauthorized
from paceline_sidecar.keys import BearerKeys
from paceline_testing.api_proxy import ApiProxy, Call, api_proxy
from paceline_testing.bare_node import BareNode, bare_node
from paceline_testing.kubelet import bind, hold_up, make_ready, patch_status, pod_of
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import running_operator
from paceline_testing.telemetry import a_limits, a_telemetry
from paceline_testing.waiting import wait_until

pytestmark = pytest.mark.cluster

_NAMESPACE = "missing-things"
_ADDRESS = "127.77.0.1"
_GPU = "nvidia.com/gpu"
_LOOK_S, _WORDS_S = 5.0, 15.0
"""How often the tests' operators look at a service, and read what the kubelet says of its pods."""
_QUIET_S = 16.0
"""Longer than both: nothing that is written again and again is as quiet."""


@dataclass(frozen=True, slots=True)
class Lacking(Home):
    """A home whose operator's calls are counted."""

    proxy: ApiProxy

    def reason(self, name: str, condition: str = "WorkloadAvailable") -> str:
        return str(self.condition(name, condition).get("reason"))

    def says_so_quietly(self, name: str) -> None:
        """Watch the operator while what is missing stays so: it looks, and soon writes nothing."""

        def own(begin: int) -> list[Call]:
            return [call for call in self.proxy.calls[begin:] if "kopf" not in call.client]

        def about(begin: int) -> list[Call]:
            return [call for call in own(begin) if call.name.startswith(name)]

        begin, began = self.proxy.mark(), time.monotonic()

        def is_quiet() -> bool:
            """The condition came first, its event follows: both are over when silence begins."""
            nonlocal begin, began
            if any(call.is_write for call in about(begin)):
                begin, began = self.proxy.mark(), time.monotonic()
            return time.monotonic() - began > _QUIET_S

        wait_until(is_quiet, every_s=0.1)
        took_s = time.monotonic() - began
        events = [call for call in own(begin) if (call.verb, call.resource) == ("list", "events")]
        print(f"{name}: {len(about(begin))} calls, {len(events)} lists of events in {took_s:.0f} s")  # noqa: T201 - shown with -s
        assert len(about(begin)) <= 2 * (took_s / _LOOK_S + 2)  # two reads for each look
        assert len(events) <= took_s / _WORDS_S + 1


@pytest.fixture(scope="module")
def home(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lacking]:
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("missing")
    with api_proxy(control_plane.kubeconfig, folder) as proxy:
        through = {"KUBECONFIG": str(proxy.kubeconfig)}
        with running_operator(control_plane, _NAMESPACE, folder, settings=through) as operator:
            yield Lacking(control_plane, _NAMESPACE, operator, proxy)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


@pytest.fixture
def node(control_plane: Cluster) -> Iterator[BareNode]:
    """A node that takes our pods alone and has no GPU."""
    with bare_node(control_plane, "paceline-without-gpu") as node:
        yield node


def _pod(home: Lacking, name: str) -> str:
    return str(home.until(lambda: pod_of(home.cluster, _NAMESPACE, name)))


def _told(home: Lacking, name: str, reason: str, condition: str) -> int:
    """Count the events of one transition."""
    found = json.loads(home.kubectl("get", "events.events.k8s.io", "-o", "json"))["items"]
    return sum(
        (event["regarding"]["name"], event["reason"], event["action"]) == (name, reason, condition)
        for event in found
        if "regarding" in event and "action" in event
    )


def test_a_missing_secret_is_named_and_forgotten_once_it_is_there(home: Lacking) -> None:
    """The pod itself says nothing; the kubelet's event does."""
    home.serve("keyless", api={"auth": {"apiKeysSecretRef": {"name": "callers"}}})
    pod = _pod(home, "keyless")
    note = 'MountVolume.SetUp failed for volume "api-keys" : secret "callers" not found'
    hold_up(home.cluster, _NAMESPACE, pod, note)

    def reason() -> str:
        return str(home.condition("keyless", "WorkloadAvailable").get("reason"))

    home.until(lambda: reason() == "SecretMissing")
    home.says_so_quietly("keyless")
    message = home.condition("keyless", "WorkloadAvailable")["message"]
    stalled = home.condition("keyless", "Stalled")["reason"]
    mounted = [{"type": "PodReadyToStartContainers", "status": "True"}]
    patch_status(home.cluster, _NAMESPACE, pod, {"conditions": mounted})
    home.until(lambda: reason() == "Progressing")

    assert "Secret callers with the key keys (spec.api.auth.apiKeysSecretRef)" in message
    assert stalled == "SecretMissing"
    assert _told(home, "keyless", "SecretMissing", "WorkloadAvailable") == 1


def test_a_node_without_a_gpu_is_named_until_it_has_one(home: Lacking, node: BareNode) -> None:
    """In the scheduler's words."""
    home.serve("gpuless", scheduling=node.scheduling, resources={"gpu": {"count": 1}})
    home.until(lambda: home.reason("gpuless") == "InsufficientGPU")
    home.says_so_quietly("gpuless")
    message = home.condition("gpuless", "WorkloadAvailable")["message"]

    node.give(**{_GPU: "1"})
    home.until(lambda: home.reason("gpuless") == "Progressing")
    make_ready(home.cluster, _NAMESPACE, _pod(home, "gpuless"))
    home.until(lambda: home.condition("gpuless", "Ready").get("status") == "True")

    assert f"Insufficient {_GPU}" in message
    assert _told(home, "gpuless", "InsufficientGPU", "WorkloadAvailable") == 1


def test_a_claim_that_is_missing_or_unbound_is_named_until_it_is_bound(
    home: Lacking, node: BareNode
) -> None:
    """First there is no claim, then no volume for it; one event tells of both."""
    home.serve(
        "shelfless",
        model={"uri": "pvc://shelf/model"},
        scheduling=node.scheduling,
        resources={"gpu": {"count": 0}},
    )

    def words() -> str:
        return str(home.condition("shelfless", "WorkloadAvailable").get("message"))

    home.until(lambda: "shelf" in words() and "not found" in words())
    home.kubectl("apply", "-f", "-", input=json.dumps(_CLAIM))
    home.until(lambda: "unbound" in words())
    home.says_so_quietly("shelfless")
    reason = home.reason("shelfless")

    home.kubectl("apply", "-f", "-", input=json.dumps(_VOLUME))
    try:
        home.until(lambda: home.reason("shelfless") == "Progressing")
        make_ready(home.cluster, _NAMESPACE, _pod(home, "shelfless"))
        home.until(lambda: home.condition("shelfless", "Ready").get("status") == "True")
    finally:
        home.kubectl("delete", "pisvc/shelfless", "pvc/shelf", "--wait=false")
        home.cluster.kubectl("delete", "pv", _VOLUME_NAME, "--wait=false")

    assert reason == "Unschedulable"
    assert _told(home, "shelfless", "Unschedulable", "WorkloadAvailable") == 1


_VOLUME_NAME = "paceline-shelf"
_ROOM = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
_CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shelf"},
    "spec": _ROOM | {"resources": {"requests": {"storage": "1Gi"}}},
}
_VOLUME = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": _VOLUME_NAME},
    "spec": _ROOM
    | {
        "capacity": {"storage": "1Gi"},
        "hostPath": {"path": "/nowhere"},
        "claimRef": {"namespace": _NAMESPACE, "name": "shelf"},
    },
}


def test_an_exhausted_quota_is_told_in_its_own_words(home: Lacking) -> None:
    """And the pods come once there is room."""
    home.kubectl("create", "quota", "tight", "--hard=count/pods=0")
    home.until(lambda: "used" in (home.get("quota", "tight") or {}).get("status", {}))
    home.serve("crowded")
    blocked = home.until(
        lambda: (
            (found := home.condition("crowded", "WorkloadAvailable")).get("reason")
            == "RolloutBlocked"
            and found
        )
    )
    home.kubectl("delete", "quota", "tight")
    home.until(lambda: pod_of(home.cluster, _NAMESPACE, "crowded"))

    assert "exceeded quota: tight" in blocked["message"]
    home.until(
        lambda: home.condition("crowded", "WorkloadAvailable").get("reason") != "RolloutBlocked"
    )


@contextmanager
def _sidecar(token_file: Path) -> Iterator[None]:
    """A pod's admin port, which judges tokens as the sidecar does."""
    keys = BearerKeys(token_file)

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(msgspec.json.encode(a_telemetry(time.time())))

        def do_PATCH(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._answer(msgspec.json.encode(a_limits()))

        def _answer(self, body: bytes) -> None:
            status = 200
            try:
                keys.check(self.headers["Authorization"])
            except Unauthorized as refusal:
                status, body = 401, str(refusal).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer((_ADDRESS, 8001), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def test_a_refused_token_is_mended_by_the_command_that_its_condition_gives(
    home: Lacking, tmp_path: Path
) -> None:
    """As after an upgrade from 0.2: the Secret holds a random token, and the pod knows it."""
    home.serve("strange")
    token_file = tmp_path / "token"
    token_file.write_text("an older version's")
    pod = _pod(home, "strange")
    bind(home.cluster, _NAMESPACE, pod)

    def reason() -> str:
        return str(home.condition("strange", "TelemetryAvailable").get("reason"))

    with _sidecar(token_file):
        make_ready(home.cluster, _NAMESPACE, pod, podIP=_ADDRESS, podIPs=[{"ip": _ADDRESS}])
        home.until(lambda: reason() == "TokenRefused")
        message = home.condition("strange", "TelemetryAvailable")["message"]
        command = message.partition("kubectl ")[2].split()
        before = (home.get("secret", "strange-runtime-token") or {})["metadata"]["uid"]
        home.cluster.kubectl(*command)
        made_anew = home.until(
            lambda: (
                (found := home.get("secret", "strange-runtime-token"))
                and found["metadata"]["uid"] != before
                and found
            )
        )
        # The kubelet brings the new Secret to the pod.
        template = "-o", "go-template={{.data.token | base64decode}}"
        token_file.write_text(home.kubectl("get", "secret", "strange-runtime-token", *template))
        home.until(lambda: reason() in {"MetricsFresh", "NoTraffic"})

    assert made_anew["metadata"]["ownerReferences"]
    assert _told(home, "strange", "TokenRefused", "TelemetryAvailable") == 1
