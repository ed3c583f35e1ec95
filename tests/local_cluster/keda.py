"""KEDA beside a cluster: its operator, and the adapter that serves metrics to the autoscaler."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from local_cluster.cluster import Cluster
from local_cluster.go_binaries import KEDA, built, source_of
from paceline_testing.certificates import make_certificate
from paceline_testing.ending import end

_NAMESPACE: Final = "keda"
_OPERATOR: Final = "keda-operator"
_READY_WITHIN: Final = "--timeout=120s"


@contextmanager
def keda(cluster: Cluster, folder: Path, *, address: str | None = None) -> Iterator[None]:
    """Bring the definitions, run both, and register the adapter; end what was begun.

    Both listen on `address`, at which the API server must reach the adapter: by default a loopback
    address of their own.
    """
    address = address or str(IPv4Address("127.160.0.0") + os.getpid())
    definitions = source_of(KEDA, "github.com/kedacore/keda/v2") / "config" / "crd" / "bases"
    cluster.kubectl("apply", "--server-side", "-f", str(definitions))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(definitions), _READY_WITHIN)
    certificates = folder / "keda"
    certificates.mkdir()
    certificate, _ = make_certificate(certificates, _OPERATOR)
    shutil.copy(certificate, certificates / "ca.crt")  # it has signed itself
    with ExitStack() as processes:
        _spawn(cluster, folder, processes, "operator", _operator(address, certificates))
        _spawn(cluster, folder, processes, "adapter", _adapter(cluster, address, certificates))
        cluster.apply(_extension(address))
        name = "apiservice/v1beta1.external.metrics.k8s.io"
        cluster.kubectl("wait", "--for=condition=Available", name, _READY_WITHIN)
        yield


def _operator(address: str, certificates: Path) -> list[str]:
    return [
        f"--metrics-bind-address={address}:8080",
        f"--health-probe-bind-address={address}:8081",
        f"--metrics-service-bind-address={address}:9666",
        f"--cert-dir={certificates}",
        "--leader-elect=false",
        "--enable-cert-rotation=false",
    ]


def _adapter(cluster: Cluster, address: str, certificates: Path) -> list[str]:
    kubeconfig = cluster.kubeconfig
    return [
        f"--bind-address={address}",
        "--secure-port=6443",
        "--port=0",  # for its own metrics, which nobody reads: any that is free
        f"--cert-dir={certificates}",
        f"--tls-cert-file={certificates / 'tls.crt'}",
        f"--tls-private-key-file={certificates / 'tls.key'}",
        f"--metrics-service-address={address}:9666",
        f"--metrics-service-grpc-authority={_OPERATOR}",
        f"--lister-kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
    ]


def _spawn(
    cluster: Cluster, folder: Path, processes: ExitStack, name: str, arguments: list[str]
) -> None:
    environment = {
        "KUBECONFIG": str(cluster.kubeconfig),
        "POD_NAMESPACE": _NAMESPACE,
        "KEDA_CLUSTER_OBJECT_NAMESPACE": _NAMESPACE,
        "WATCH_NAMESPACE": "",
    }
    with (folder / f"keda-{name}.log").open("ab") as sink:
        process = subprocess.Popen(
            [str(built(KEDA) / name), *arguments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )
    processes.callback(end, process)


def _extension(address: str) -> Iterator[dict[str, Any]]:
    """Register the adapter; an ExternalName leads the API server out of the cluster's network."""
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _NAMESPACE}}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "keda-metrics-apiserver", "namespace": _NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": address},
    }
    yield {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
        "spec": {
            "group": "external.metrics.k8s.io",
            "version": "v1beta1",
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
            "service": {
                "name": "keda-metrics-apiserver",
                "namespace": _NAMESPACE,
                "port": 6443,
            },
        },
    }
