"""Flux's kustomize-controller as a process, with a source that a plain file server stands for."""

import functools
import hashlib
import io
import json
import os
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from local_cluster.cluster import Cluster
from local_cluster.go_binaries import FLUX, built, module_folder
from paceline_testing.ending import end

SOURCE_CONTROLLER = (
    "github.com/fluxcd/source-controller",
    "v1.9.0",
    "h1:5msg2yyjVYDULZos+2ve8MZzcSqTpusiXmrOeBhc9yY=",
)
KUSTOMIZE_CONTROLLER = (
    "github.com/fluxcd/kustomize-controller",
    "v1.9.5",
    "h1:/XY2zy3K7fntyppEXIHG7oRMzmfgIt50eJzUfaPX1Kc=",
)
INTERVAL = "3s"
_NAME = "services"


@dataclass(frozen=True, slots=True)
class Flux:
    """One running controller that applies one source every few seconds."""

    cluster: Cluster
    namespace: str
    log: Path

    def applications(self) -> list[Mapping[str, str]]:
        """What each application did to each object so far: created, configured or unchanged.

        From its log, as it records 25 events of an object at first and then one in five minutes.
        """
        lines = self.log.read_text().splitlines()
        records = [json.loads(line) for line in lines if line.startswith("{")]
        return [
            record["output"] for record in records if record["msg"] == "server-side apply completed"
        ]

    def is_healthy(self) -> bool:
        """Whether Flux's own reading of the conditions (kstatus) calls all of it ready."""
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        get = ("-n", self.namespace, "get", f"kustomization/{_NAME}", f"-ojsonpath={path}")
        return self.cluster.kubectl(*get) == "True"


@contextmanager
def flux(
    cluster: Cluster, namespace: str, files: Mapping[str, str], folder: Path
) -> Iterator[Flux]:
    """Apply `files` into the namespace again and again, from a controller of its own."""
    for module in (SOURCE_CONTROLLER, KUSTOMIZE_CONTROLLER):
        definitions = module_folder(*module) / "config" / "crd" / "bases"
        cluster.kubectl("apply", "--server-side", "-f", str(definitions))
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(definitions))
    archive = _archive(files)
    (folder / "source.tar.gz").write_bytes(archive)
    log = folder / "flux.log"
    with _file_server(folder) as url, log.open("wb") as sink:
        _declare(cluster, namespace, f"{url}/source.tar.gz", archive)
        process = subprocess.Popen(
            [
                str(built(FLUX) / "kustomize-controller"),
                "--metrics-addr=0",
                "--health-addr=0",
                "--watch-all-namespaces=false",
                "--interval-jitter-percentage=0",
                "--no-remote-bases",
            ],
            env=os.environ
            | {"KUBECONFIG": str(cluster.kubeconfig), "RUNTIME_NAMESPACE": namespace},
            cwd=folder,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
        try:
            yield Flux(cluster, namespace, log)
        finally:
            end(process)
            # Nobody is left to take the finalizer away.
            free = ("--type=merge", "-p", '{"metadata": {"finalizers": null}}')
            cluster.kubectl("-n", namespace, "patch", f"kustomization/{_NAME}", *free)


def _declare(cluster: Cluster, namespace: str, url: str, archive: bytes) -> None:
    """Make the source with the status that source-controller would give it, and what applies it."""
    source = {
        "apiVersion": "source.toolkit.fluxcd.io/v1",
        "kind": "GitRepository",
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": {"interval": "1h", "url": "https://git.test/services"},
    }
    artifact = {
        "digest": f"sha256:{hashlib.sha256(archive).hexdigest()}",
        "lastUpdateTime": "2026-01-01T00:00:00Z",
        "path": "source.tar.gz",
        "revision": "main@sha1:0123456789012345678901234567890123456789",
        "size": len(archive),
        "url": url,
    }
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Succeeded",
        "message": "stored artifact",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"status": {"observedGeneration": 1, "artifact": artifact, "conditions": [ready]}}
    kustomization = {
        "apiVersion": "kustomize.toolkit.fluxcd.io/v1",
        "kind": "Kustomization",
        "metadata": {"name": _NAME, "namespace": namespace},
        "spec": {
            "interval": INTERVAL,
            "retryInterval": INTERVAL,
            "timeout": "60s",
            "path": "./",
            "prune": True,
            "wait": True,
            "targetNamespace": namespace,
            "sourceRef": {"kind": "GitRepository", "name": _NAME},
        },
    }
    cluster.kubectl("apply", "-f", "-", input=json.dumps(source))
    patch = ("patch", f"gitrepository/{_NAME}", "--subresource=status", "--type=merge")
    cluster.kubectl("-n", namespace, *patch, "-p", json.dumps(status))
    cluster.kubectl("apply", "-f", "-", input=json.dumps(kustomization))


def _archive(files: Mapping[str, str]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Tests print what matters."""


@contextmanager
def _file_server(folder: Path) -> Iterator[str]:
    handler = functools.partial(_Silent, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
