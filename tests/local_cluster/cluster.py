"""A cluster as tests and developers use it, whatever runs it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import helm_python
import yaml

from local_cluster.errors import ClusterError
from paceline_testing.ending import end


class KubectlFailedError(ClusterError):
    """kubectl ended with an error; the message is its output."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """One reachable Kubernetes cluster."""

    kubeconfig: Path
    images: Mapping[str, str] = field(default_factory=dict)
    """Image references by part (`operator`, `sidecar`, `engine`) that its nodes can run."""

    is_routed: bool = True
    """Whether this machine has routes to the cluster's Services."""

    audit_log: Path | None = None
    """Where its API server writes what service accounts asked, if we started it."""

    @property
    def url(self) -> str:
        """The API server's address."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        return str(config["clusters"][0]["cluster"]["server"])

    def kubectl(
        self, *args: str, input: str | None = None, timeout_s: float = 300, check: bool = True
    ) -> str:
        """Run kubectl and return what it printed; `check` raises when it fails."""
        result = self.try_kubectl(*args, input=input, timeout_s=timeout_s)
        if check and result.returncode != 0:
            raise KubectlFailedError(f"kubectl {' '.join(args)}: {result.stderr.strip()}")
        return result.stdout

    def apply(self, objects: Iterable[Mapping[str, Any]]) -> None:
        """Apply all of them."""
        self.kubectl("apply", "--filename=-", input=listed(objects))

    def try_kubectl(
        self, *args: str, input: str | None = None, timeout_s: float = 300
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return its exit code, stdout and stderr."""
        return subprocess.run(
            [kubectl_command(), *args],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    @contextmanager
    def reach(self, target: str, port: int, *, namespace: str = "default") -> Iterator[str]:
        """The base URL of `service/NAME` or `pod/NAME`: its own address, else a forwarded port."""
        if self.is_routed:
            field = "{.spec.clusterIP}" if target.startswith("service/") else "{.status.podIP}"
            address = self.kubectl("get", target, "-n", namespace, f"-ojsonpath={field}")
            yield f"http://{address}:{port}"
            return
        with subprocess.Popen(
            [kubectl_command(), "port-forward", "-n", namespace, target, f":{port}"],
            env=os.environ | {"KUBECONFIG": str(self.kubeconfig)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # Forwarding from 127.0.0.1:40123 -> 8000
                yield f"http://{line.split()[2]}"
            finally:
                end(process)

    def helm(self, namespace: str = "default") -> helm_python.Config:
        """Helm, bound to one namespace: `with cluster.helm("x") as helm: helm.install(...)`."""
        return helm_python.Config(kubeconfig_path=self.kubeconfig, namespace=namespace)


def listed(objects: Iterable[Mapping[str, Any]]) -> str:
    """Write them as one document, as kubectl reads it."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [*objects]})


def kubectl_command() -> str:
    """The kubectl of this environment, else the one on PATH."""
    beside_python = Path(sys.executable).parent / "kubectl"
    found = str(beside_python) if beside_python.exists() else shutil.which("kubectl")
    if found is None:
        raise ClusterError("kubectl is missing: `make install` installs it into .venv")
    return found
