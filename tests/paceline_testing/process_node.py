"""A node whose pods are processes of this machine, each pod on a loopback address of its own.

The control plane schedules, ends and collects its pods as those of any node; what a kubelet does
for the two kinds of pods of Paceline is done here: volumes of Secrets and ConfigMaps, settings,
readiness, and a drain in the order that the pod's hooks ask for. No image, no root.
"""

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from local_cluster.cluster import Cluster
from paceline_testing.ending import end
from paceline_testing.kept_secrets import leaks, remember

Json = dict[str, Any]

NAME: Final = "processes"
_BEAT_S: Final = 10.0
_LOOK_S: Final = 0.3
_MODULES: Final = {
    "operator": "paceline_operator",
    "sidecar": "paceline_sidecar",
    "engine": "paceline_testing.timed_engine",
}
_HOST: Final = {"operator": "PACELINE_OPERATOR_HOST", "sidecar": "PACELINE_SIDECAR_HOST"}
# Pods of one process get neighbouring addresses, those of another process get others.
_FIRST_ADDRESS: Final = IPv4Address("127.192.0.0") + (os.getpid() % (1 << 16)) * 64
_DRAIN_AFTER_S: Final = 2.0


def api(cluster: Cluster) -> httpx.Client:
    """Return a client of the API server with the rights of the kubeconfig's user."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    trust = ssl.create_default_context(cafile=server["certificate-authority"])
    headers = {"Authorization": f"Bearer {user['token']}"}
    return httpx.Client(base_url=server["server"], verify=trust, headers=headers, timeout=30)


@dataclass
class _Pod:
    """One pod that runs."""

    manifest: Json
    address: str
    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    leaves_at: float | None = None
    """When its sidecar is told to drain; None until the pod is deleted."""
    killed_at: float | None = None
    """When its grace is over; None until the pod is deleted."""
    is_asked: bool = False
    """Whether its containers got their SIGTERM."""
    shown: Json | None = None
    """The status that was written last."""

    @property
    def path(self) -> str:
        meta = self.manifest["metadata"]
        return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"

    def ask_to_leave(self) -> None:
        """Send SIGTERM to all but the engine, once: at a second one a sidecar does not drain."""
        if self.is_asked:
            return
        self.is_asked = True
        for name, process in self.processes.items():
            if name != "engine" and process.poll() is None:
                process.terminate()

    @property
    def is_drained(self) -> bool:
        return all(
            name == "engine" or process.poll() is not None
            for name, process in self.processes.items()
        )


@dataclass
class ProcessNode:
    """The node; it works in a thread of its own between `start` and `stop`."""

    cluster: Cluster
    folder: Path
    pods: dict[str, _Pod] = field(default_factory=dict, repr=False)
    """By uid."""
    log: list[str] = field(default_factory=list)
    overstayed: list[str] = field(default_factory=list)
    """Pods that were killed at the end of their grace."""
    _stopping: threading.Event = field(default_factory=threading.Event)
    _num_started: int = 0
    _only: frozenset[str] | None = None
    """The pods that may start; None while all may."""

    def __post_init__(self) -> None:
        self._api = api(self.cluster)
        self._probes = httpx.Client(timeout=2)
        self._beaten_at = 0.0
        self._thread = threading.Thread(target=self._work, name="process-node", daemon=True)

    @property
    def slowdown(self) -> Path:
        """A number in this file slows every engine of the node by as much."""
        return self.folder / "slowdown"

    def serving(self, namespace: str, service: str) -> list[str]:
        """Return the base URLs that a Service would send requests to."""
        return [
            f"http://{pod.address}:8000"
            for pod in [*self.pods.values()]
            if pod.manifest["metadata"]["namespace"] == namespace
            and pod.manifest["metadata"]["labels"].get("serving.paceline.dev/service") == service
            and pod.leaves_at is None
            and pod.shown is not None
            and _is_ready(pod.shown)
        ]

    def lose(self, names: Collection[str]) -> list[str]:
        """Kill everything of these pods at once, as with their machine; return their base URLs."""
        lost = [pod for pod in [*self.pods.values()] if pod.manifest["metadata"]["name"] in names]
        for pod in lost:
            pod.leaves_at = pod.killed_at = time.monotonic()
        for pod in lost:
            for process in pod.processes.values():
                process.kill()
        return [f"http://{pod.address}:8000" for pod in lost]

    @contextmanager
    def starting_only(self, names: Collection[str]) -> Iterator[None]:
        """Leave every other pod pending until the end, so that none of them gets ready."""
        self._only = frozenset(names)
        try:
            yield
        finally:
            self._only = None

    def start(self) -> None:
        """Register the node, and begin."""
        labels = {"kubernetes.io/hostname": NAME, "kubernetes.io/os": "linux"}
        node = {"metadata": {"name": NAME, "labels": labels}}
        self._api.post("/api/v1/nodes", json=node).raise_for_status()
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """End every process of every pod."""
        self._stopping.set()
        self._thread.join(60)
        for pod in self.pods.values():
            for process in pod.processes.values():
                end(process, grace_s=5)
        self._api.close()
        self._probes.close()
        for log in self.folder.glob("*-sidecar.log"):
            assert not (found := leaks(log.read_text(errors="replace"))), f"{log} tells {found}"

    def _work(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                self._beat()
                self._look()
            except httpx.HTTPError as problem:  # the next look tells what has become of it
                self.log.append(repr(problem))

    def _beat(self) -> None:
        """Stay Ready: the node's controller evicts the pods of a silent node."""
        if time.monotonic() < self._beaten_at + _BEAT_S:
            return
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "Works", "message": "it works"}
        ready |= {"lastHeartbeatTime": _now(), "lastTransitionTime": _now()}
        status = {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}
        self._patch(f"/api/v1/nodes/{NAME}/status", {"status": status})
        self._beaten_at = time.monotonic()

    def _look(self) -> None:
        query = {"fieldSelector": f"spec.nodeName={NAME}"}
        answer = self._api.get("/api/v1/pods", params=query)
        answer.raise_for_status()
        found = {pod["metadata"]["uid"]: pod for pod in answer.json()["items"]}
        for uid, manifest in found.items():
            if uid in self.pods:
                self.pods[uid].manifest = manifest
            elif "deletionTimestamp" not in manifest["metadata"] and self._may_start(manifest):
                self.pods[uid] = self._begin(manifest)
        for uid, pod in [*self.pods.items()]:
            if uid not in found or self._leave(pod):
                self._drop(uid)
            else:
                self._show(pod)

    def _may_start(self, manifest: Json) -> bool:
        only = self._only
        return only is None or manifest["metadata"]["name"] in only

    def _begin(self, manifest: Json) -> _Pod:
        self._num_started += 1
        # Short: a socket's path may have 107 bytes.
        folder = Path(tempfile.mkdtemp(prefix="pp-"))
        pod = _Pod(manifest, str(_FIRST_ADDRESS + self._num_started), folder)
        mounted = self._mount(pod)
        for container in _containers(manifest):
            name = container["name"]
            settings = _settings(container, _placed(manifest, pod.address), mounted)
            settings["TIMED_ENGINE_SLOWDOWN"] = str(self.slowdown)
            settings["PYTHONPATH"] = _path_to_tests()
            if name in _HOST:
                settings[_HOST[name]] = pod.address
            if manifest["spec"].get("automountServiceAccountToken", True):
                settings["KUBECONFIG"] = str(self._kubeconfig(manifest, folder))
            if name == "engine":
                settings["PACELINE_ENGINE_TERMINATION_LOG"] = str(folder / "termination-log")
            with (self.folder / f"{manifest['metadata']['name']}-{name}.log").open("ab") as sink:
                pod.processes[name] = subprocess.Popen(
                    [sys.executable, *_arguments(container)],
                    env=os.environ | settings,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    cwd=folder,
                )
        return pod

    def _mount(self, pod: _Pod) -> dict[str, Path]:
        """Fill a folder for each volume."""
        namespace = f"/api/v1/namespaces/{pod.manifest['metadata']['namespace']}"
        found = {}
        for volume in pod.manifest["spec"].get("volumes", ()):
            found[volume["name"]] = folder = pod.folder / volume["name"]
            folder.mkdir()
            if "secret" in volume:
                held = self._get(f"{namespace}/secrets/{volume['secret']['secretName']}")
                for key, value in held.get("data", {}).items():
                    (folder / key).write_bytes(base64.b64decode(value))
                    remember(base64.b64decode(value).decode(errors="replace"))
            if "configMap" in volume:
                held = self._get(f"{namespace}/configmaps/{volume['configMap']['name']}")
                for key, value in held.get("data", {}).items():
                    (folder / key).write_text(value)
        return found

    def _kubeconfig(self, manifest: Json, folder: Path) -> Path:
        """Give the rights of the pod's own service account."""
        account = manifest["spec"]["serviceAccountName"]
        namespace = manifest["metadata"]["namespace"]
        return account_kubeconfig(self.cluster, namespace, account, folder / "kubeconfig")

    def _leave(self, pod: _Pod) -> bool:
        """Bring a deleted pod to its end step by step; whether it has come there."""
        if "deletionTimestamp" not in pod.manifest["metadata"]:
            return False
        if pod.leaves_at is None or pod.killed_at is None:
            grace_s = pod.manifest["metadata"]["deletionGracePeriodSeconds"]
            pod.leaves_at = time.monotonic() + _DRAIN_AFTER_S
            pod.killed_at = time.monotonic() + float(grace_s)
        if time.monotonic() < pod.leaves_at:
            return False
        if time.monotonic() > pod.killed_at and not pod.is_drained:
            self.overstayed.append(pod.manifest["metadata"]["name"])
            for process in pod.processes.values():
                process.kill()
        pod.ask_to_leave()
        if not pod.is_drained:
            return False
        if engine := pod.processes.get("engine"):
            end(engine, grace_s=5)
        body = {"gracePeriodSeconds": 0, "kind": "DeleteOptions", "apiVersion": "v1"}
        self._api.request("DELETE", pod.path, json=body)
        return True

    def _drop(self, uid: str) -> None:
        pod = self.pods.pop(uid)
        for process in pod.processes.values():
            end(process, grace_s=5)
        shutil.rmtree(pod.folder, ignore_errors=True)

    def _show(self, pod: _Pod) -> None:
        status = _status(pod, is_ready=self._is_answering(pod))
        if pod.shown is None or status != pod.shown:
            self._patch(f"{pod.path}/status", {"status": _stamped(status, pod)})
            pod.shown = status

    def _is_answering(self, pod: _Pod) -> bool:
        """Ask what each container's readiness probe asks."""
        return all(
            self._answers(pod, container["readinessProbe"]["httpGet"], container)
            for container in _containers(pod.manifest)
            if "readinessProbe" in container
        )

    def _answers(self, pod: _Pod, probe: Json, container: Json) -> bool:
        names = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        port = names.get(probe["port"], probe["port"])
        try:
            return self._probes.get(f"http://{pod.address}:{port}{probe['path']}").is_success
        except httpx.TransportError:
            return False

    def _get(self, path: str) -> Json:
        answer = self._api.get(path)
        answer.raise_for_status()
        found: Json = answer.json()
        return found

    def _patch(self, path: str, body: Json) -> None:
        headers = {"Content-Type": "application/strategic-merge-patch+json"}
        answer = self._api.patch(path, content=json.dumps(body), headers=headers)
        if answer.status_code != httpx.codes.NOT_FOUND:
            answer.raise_for_status()


@contextmanager
def process_node(cluster: Cluster, folder: Path) -> Iterator[ProcessNode]:
    """Run such a node of the cluster; its logs go to `folder`."""
    node = ProcessNode(cluster, folder)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def account_kubeconfig(cluster: Cluster, namespace: str, account: str, path: Path) -> Path:
    """Write a kubeconfig that acts as a service account."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    token = cluster.kubectl("create", "token", account, f"--namespace={namespace}", "--duration=2h")
    config["users"][0]["user"] = {"token": token.strip()}
    path.write_text(yaml.safe_dump(config))
    return path


def _path_to_tests() -> str:
    """Return the PYTHONPATH by which a process finds what pytest finds by its own settings."""
    places = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))
    return os.pathsep.join(place for place in places if place)


def _containers(manifest: Json) -> list[Json]:
    spec = manifest["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def _arguments(container: Json) -> list[str]:
    """Return what Python is given: the container's command, else what its image would run."""
    if "command" in container:
        return [str(word) for word in container["command"][1:]]
    return ["-m", _MODULES[container["name"]]]


def _settings(container: Json, manifest: Json, mounted: Mapping[str, Path]) -> dict[str, str]:
    """Read a container's environment; paths below a mount become those of the volume's folder."""
    mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", ())}
    found = {}
    for variable in container.get("env", ()):
        if "valueFrom" in variable:
            value = _field(manifest, variable["valueFrom"]["fieldRef"]["fieldPath"])
        else:
            value = variable.get("value", "")
        for path, name in mounts.items():
            if value == path or value.startswith(f"{path}/"):
                value = str(mounted[name]) + value.removeprefix(path)
                break
        found[variable["name"]] = value
    return found


def _placed(manifest: Json, address: str) -> Json:
    """Give a pod its address before its containers begin, as a kubelet does."""
    return manifest | {"status": manifest.get("status", {}) | {"podIP": address}}


def _field(manifest: Json, path: str) -> str:
    found: Any = manifest
    for name in path.split("."):
        found = found[name]
    return str(found)


def _status(pod: _Pod, *, is_ready: bool) -> Json:
    """Say what a kubelet would say of it."""
    conditions = {"Initialized": True, "ContainersReady": is_ready, "Ready": is_ready}
    spec = pod.manifest["spec"]
    return {
        "phase": _phase(pod),
        "podIP": pod.address,
        "podIPs": [{"ip": pod.address}],
        "conditions": [{"type": kind, "status": str(value)} for kind, value in conditions.items()],
        "initContainerStatuses": [
            _container(pod, each, is_ready=is_ready) for each in spec.get("initContainers", ())
        ],
        "containerStatuses": [
            _container(pod, each, is_ready=is_ready) for each in spec["containers"]
        ],
    }


def _phase(pod: _Pod) -> str:
    """Tell whether it runs; a pod of a Job ends."""
    codes = [process.poll() for process in pod.processes.values()]
    if pod.manifest["spec"].get("restartPolicy") != "Never" or None in codes:
        return "Running"
    return "Failed" if any(codes) else "Succeeded"


def _container(pod: _Pod, container: Json, *, is_ready: bool) -> Json:
    process = pod.processes[container["name"]]
    code = process.poll()
    state: Json = {"running": {}}
    if code is not None:
        state = {"terminated": {"exitCode": abs(code), "reason": "Error" if code else "Completed"}}
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"],
        "ready": is_ready and code is None,
        "started": True,
        "restartCount": 0,
        "state": state,
    }


def _stamped(status: Json, pod: _Pod) -> Json:
    """Give each condition the time since when it holds."""
    before = {entry["type"]: entry["status"] for entry in (pod.shown or {}).get("conditions", ())}
    stamped = [
        entry | ({} if before.get(entry["type"]) == entry["status"] else _since())
        for entry in status["conditions"]
    ]
    return status | {"conditions": stamped}


def _since() -> Json:
    return {"lastTransitionTime": _now()}


def _is_ready(status: Json) -> bool:
    return any(
        entry["type"] == "Ready" and entry["status"] == "True" for entry in status["conditions"]
    )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
