"""A kubelet's part for the pods of Jobs, where a cluster has no node: it runs them as processes."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from local_cluster.cluster import Cluster

_EVERY_S = 0.2


def as_account(cluster: Cluster, namespace: str, account: str, folder: Path) -> Cluster:
    """Log in as a service account, with nothing but its token."""
    token = cluster.kubectl("-n", namespace, "create", "token", account).strip()
    config = yaml.safe_load(cluster.kubectl("config", "view", "--raw", "--minify", "--flatten"))
    config["users"][0]["user"] = {"token": token}
    kubeconfig = folder / f"kubeconfig-{namespace}-{account}"
    kubeconfig.write_text(yaml.safe_dump(config))
    return Cluster(kubeconfig)


@contextmanager
def job_pods_run(cluster: Cluster, namespace: str, folder: Path) -> Iterator[list[str]]:
    """Run each Job's pod as this Python with its service account's rights; yield what they say."""
    outputs: list[str] = []
    is_over = threading.Event()
    problems: list[BaseException] = []

    def serve() -> None:
        try:
            while not is_over.wait(_EVERY_S):
                outputs.extend(_run(cluster, pod, folder) for pod in _pending(cluster, namespace))
        except BaseException as problem:  # noqa: BLE001 - it is raised in the test's own thread
            problems.append(problem)

    kubelet = threading.Thread(target=serve)
    kubelet.start()
    try:
        yield outputs
    finally:
        is_over.set()
        kubelet.join()
    if problems:
        raise problems[0]


def _pending(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    listing = ("get", "pods", "-l", "job-name", "-o", "json", "--ignore-not-found")
    text = cluster.kubectl("-n", namespace, *listing, check=False)
    items = json.loads(text)["items"] if text else []
    return [pod for pod in items if pod["status"].get("phase") == "Pending"]


def _run(cluster: Cluster, pod: dict[str, Any], folder: Path) -> str:
    metadata, spec = pod["metadata"], pod["spec"]
    account = as_account(cluster, metadata["namespace"], spec["serviceAccountName"], folder)
    (container,) = spec["containers"]
    assert container["command"][0] == "python"

    done = subprocess.run(
        [sys.executable, *container["command"][1:]],
        env=os.environ | {"KUBECONFIG": str(account.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    phase = "Succeeded" if done.returncode == 0 else "Failed"
    cluster.kubectl(
        *("-n", metadata["namespace"], "patch", "pod", metadata["name"], "--subresource=status"),
        *("--type=merge", "-p", json.dumps({"status": {"phase": phase}})),
    )
    return done.stdout + done.stderr
