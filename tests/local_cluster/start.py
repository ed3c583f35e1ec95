"""Starts a cluster: a control plane alone, or the whole with its node."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from types import MappingProxyType

from local_cluster import credentials as keys
from local_cluster import go_binaries, images, machine, network
from local_cluster.cache import CACHE, locked
from local_cluster.cluster import Cluster
from local_cluster.control_plane import COMMANDS, PORT, ControlPlane
from local_cluster.credentials import Credentials
from local_cluster.enclosure import enclosed, kept
from local_cluster.errors import ClusterFailedError
from local_cluster.node import NAME, Node
from local_cluster.plan import Plan
from local_cluster.progress import say

_NODE_READY_WITHIN_S = 120


@contextmanager
def control_plane() -> Iterator[Cluster]:
    """etcd, API server, controller-manager and scheduler as plain processes on loopback."""
    machine.prepare_control_plane()
    commands = _control_plane_commands()
    with _run_folder("control-plane") as folder:
        address = _own_loopback_address()
        credentials = Credentials(folder, f"https://{address}:{PORT}")
        keys.create(credentials)
        plane = ControlPlane(address, commands, credentials, data=folder)
        plane.write_files()
        with kept(Plan(logs=folder / "logs", processes=plane.processes())):
            cluster = Cluster(credentials.kubeconfig("admin"), audit_log=plane.audit_log)
            _wait_for_first_namespace(cluster)
            yield cluster


@contextmanager
def whole(
    *,
    returns: Mapping[str, float] = MappingProxyType({}),
    node_grace: str = "50s",
    archives: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[Cluster]:
    """All of Kubernetes with one node, enclosed, with the images of this tree on the node.

    `returns` names parts that may be ended, and after how many seconds each is started again.
    `node_grace` is for how long the node may say nothing before it is taken for lost. `archives`
    are images of others that the node gets as well, by reference.
    """
    machine.prepare_node()
    binaries = all_binaries()
    with locked("containerd"), _run_folder("whole") as folder:
        credentials = Credentials(folder, f"https://{network.NODE}:{PORT}")
        keys.create(credentials)
        node = Node(folder, binaries, credentials)
        node.write_files()
        plane = ControlPlane(
            network.NODE, binaries, credentials, data=folder, node_grace=node_grace
        )
        plane.write_files()
        plan = Plan(
            logs=folder / "logs",
            setup=network.setup(node.no_names),
            processes=[
                replace(process, returns_after_s=returns.get(process.name))
                for process in (*node.runtime(), *plane.processes(), *node.agents())
            ],
            environment=_environment(binaries),
        )
        started_at = time.monotonic()
        with enclosed(plan):
            names = images.ready(node, images.wanted(), archives)
            cluster = Cluster(
                credentials.kubeconfig("admin"), images=names, audit_log=plane.audit_log
            )
            _wait_for_first_namespace(cluster)
            _wait_for_node(cluster)
            say(f"the whole cluster is ready after {time.monotonic() - started_at:.1f} s")
            yield cluster


@contextmanager
def image_store() -> Iterator[Node]:
    """Start containerd and BuildKit without Kubernetes, enclosed, to build images."""
    machine.prepare_node()
    binaries = all_binaries()
    with locked("containerd"), _run_folder("images") as folder:
        node = Node(folder, binaries, Credentials(folder, ""))
        node.write_files()
        plan = Plan(
            logs=folder / "logs",
            setup=network.setup(node.no_names),
            processes=node.runtime(),
            environment=_environment(binaries),
        )
        with enclosed(plan):
            yield node


def all_binaries() -> dict[str, Path]:
    """Every command of the cluster by its name."""
    modules = (
        go_binaries.KUBERNETES,
        go_binaries.CONTAINERD,
        go_binaries.RUNC,
        go_binaries.BUILDKIT,
    )
    return {file.name: file for module in modules for file in go_binaries.built(module).iterdir()}


def _control_plane_commands() -> Mapping[str, Path]:
    """Find the four in KUBEBUILDER_ASSETS or on PATH, if one has all, else build them."""
    for places in (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")):
        found = {name: shutil.which(name, path=places) for name in COMMANDS} if places else {}
        if found and all(found.values()):
            return {name: Path(str(path)) for name, path in found.items()}
    return {file.name: file for file in go_binaries.built(go_binaries.KUBERNETES).iterdir()}


def _environment(binaries: Mapping[str, Path]) -> dict[str, str]:
    """Put the binaries on PATH: containerd looks there for its shim, the shim for runc."""
    folders = dict.fromkeys(str(file.parent) for file in binaries.values())
    return {"PATH": os.pathsep.join([*folders, "/usr/sbin", "/usr/bin", "/sbin", "/bin"])}


def _own_loopback_address() -> str:
    """Return an address that no other living process picks, so that fixed ports never clash."""
    return str(IPv4Address("127.64.0.0") + os.getpid())  # process ids have 22 bits at most


@contextmanager
def _run_folder(kind: str) -> Iterator[Path]:
    """A private folder for one run; its logs stay in the cache until the next run."""
    folder = Path(tempfile.mkdtemp(prefix="paceline-"))  # short: it holds sockets
    logs = CACHE / "logs" / kind
    try:
        yield folder
    finally:
        shutil.rmtree(logs, ignore_errors=True)
        if (folder / "logs").exists():
            shutil.copytree(folder / "logs", logs)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for_first_namespace(cluster: Cluster) -> None:
    """Wait for the default service account; pods are refused before it exists."""
    give_up_at = time.monotonic() + _NODE_READY_WITHIN_S
    while cluster.try_kubectl("get", "serviceaccount", "default").returncode != 0:
        if time.monotonic() > give_up_at:
            raise ClusterFailedError("kube-controller-manager made no default service account")
        time.sleep(0.2)


def _wait_for_node(cluster: Cluster) -> None:
    """Wait until the node is Ready, shortly after the kubelet has started."""
    within = f"--timeout={_NODE_READY_WITHIN_S}s"
    cluster.kubectl("wait", "--for=create", f"node/{NAME}", within)
    cluster.kubectl("wait", "--for=condition=Ready", f"node/{NAME}", within)
