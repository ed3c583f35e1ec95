"""The chart installed and upgraded by a real Helm, in a cluster that forgets it afterwards."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import helm_python

from local_cluster.cluster import Cluster
from paceline_testing.job_pods import job_pods_run
from paceline_testing.waiting import wait_until

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "paceline"
DEFINITION = "inferenceservices.serving.paceline.dev"
NAME = "pl"

_WITHIN_S = 240


@dataclass(frozen=True, slots=True)
class Releases:
    """One namespace with Helm, and what the pods of its Jobs said."""

    cluster: Cluster
    namespace: str
    helm: helm_python.Config
    said: list[str]

    def kubectl(self, *args: str, **options: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *args, **options)

    def install(self, chart: Path, **values: Any) -> None:
        self.helm.install(chart, NAME, values, timeout=_WITHIN_S)
        wait_until(lambda: serves(self.cluster), within_s=120)

    def upgrade(self, chart: Path, **values: Any) -> None:
        self.helm.upgrade(chart, NAME, values, timeout=_WITHIN_S)

    def definition(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "crd", DEFINITION, "-o", "json"))
        return found

    def services(self) -> dict[str, dict[str, Any]]:
        items = json.loads(self.kubectl("get", "pisvc", "-o", "json"))["items"]
        return {item["metadata"]["name"]: item for item in items}


@contextmanager
def releases(cluster: Cluster, namespace: str, folder: Path) -> Iterator[Releases]:
    """Begin without our definition; at the end remove all of it, and put the definition back."""
    _forget(cluster, namespace)
    cluster.kubectl("delete", "crd", DEFINITION, "--ignore-not-found", "--timeout=120s")
    cluster.kubectl("create", "namespace", namespace)
    cluster.kubectl("label", "ns", namespace, "pod-security.kubernetes.io/enforce=restricted")
    try:
        with cluster.helm(namespace) as helm, job_pods_run(cluster, namespace, folder) as said:
            yield Releases(cluster, namespace, helm, said)
    finally:
        _forget(cluster, namespace)
        cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
        wait_until(lambda: serves(cluster), within_s=120)


def serves(cluster: Cluster) -> bool:
    """`kubectl wait` gives up on a definition so new that it has no list of conditions yet."""
    established = '{.status.conditions[?(@.type=="Established")].status}'
    found = cluster.try_kubectl("get", f"crd/{DEFINITION}", f"-ojsonpath={established}")
    return found.stdout == "True" and cluster.try_kubectl("get", DEFINITION).returncode == 0


def _forget(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("delete", "ns", namespace, "--ignore-not-found", "--timeout=120s")
    ours = ("-l", "app.kubernetes.io/part-of=paceline")
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", *ours)
