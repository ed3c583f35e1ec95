"""The service under an operator of two replicas on a whole Kubernetes: looked at, and hurt."""

import json
import os
import signal
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from chaos import processes
from chaos.calm import REPLICAS, Json, Leader, Seen, is_ready, statuses
from chaos.faults import Fault, Kind
from chaos.streams import Kill
from chaos.watches import Watches
from local_cluster import start
from local_cluster.cluster import Cluster

CHART: Final = Path(__file__).parents[2] / "charts" / "paceline"
SYSTEM: Final = "chaos-system"
RELEASE: Final = "paceline"
NAME: Final = "chaos"
ACCOUNT: Final = f"system:serviceaccount:{SYSTEM}:{RELEASE}"
API_SERVER_AWAY_S: Final = 10.0
# A node that cannot report for 50 s is taken for lost, and all its pods leave their Services. Where
# the API server has replicas, as in production, its node reports to another one meanwhile.
NODE_GRACE: Final = "5m"
DISK_SLOW_S: Final = 20.0
# Each write waits for up to a second and a half: slower than etcd's own warning of 100 ms.
_STOPPED_S, _RUNNING_S = 1.5, 0.5
_API_SERVER_ENDS_WITHIN_S = 120.0
_SET_UP_WITHIN_S = 600.0
_CONTAINERS: Final[Mapping[Kind, str]] = {
    Kind.SIDECAR: "sidecar",
    Kind.ENGINE: "engine",
    Kind.LEADER: "operator",
    Kind.OPERATOR: "operator",
}


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done."""

    victim: str
    container_id: str = ""
    """The container that must be gone before it counts as calm."""
    kill: Kill | None = None
    """Set where the fault cuts streams."""


@dataclass(frozen=True, slots=True)
class World:
    """One cluster of our own, with the chart and the service on it."""

    cluster: Cluster
    api: httpx.Client
    """The API server, as the admin."""
    log: TextIO
    """Its audit log, read on with each look."""
    watches: Watches = field(default_factory=Watches)
    """Which of Kubernetes' own parts watch, and which do not yet."""

    def url(self) -> str:
        """Return the service's ClusterIP, to which this machine has a route."""
        service = self._get(f"/api/v1/namespaces/default/services/{NAME}")
        return f"http://{service['spec']['clusterIP']}:8000"

    def pod_urls(self) -> list[str]:
        """Return each pod's own address."""
        return [f"http://{pod['status']['podIP']}:8000" for pod in self.pods()]

    def look(self) -> Seen:
        """Look at everything; raises `httpx.HTTPError` while the API server is away."""
        group = "/apis/serving.paceline.dev/v1alpha1/namespaces/default"
        operators = self.operators()
        self.watches.take(self.log.read())
        return Seen(
            service=self._get(f"{group}/inferenceservices/{NAME}"),
            pods=self.pods(),
            operators=operators,
            leader=self._leader(operators),
            deaf=self.watches.missing(),
        )

    def pods(self) -> list[Json]:
        """Return the service's pods."""
        return self._pods("default", f"serving.paceline.dev/service={NAME}")

    def operators(self) -> list[Json]:
        """Return the operator's pods."""
        return self._pods(SYSTEM, "app.kubernetes.io/component=operator")

    def tell(self) -> str:
        """Say how everything stands, for a person who looks for what is wrong."""
        operator = (f"--namespace={SYSTEM}", "--selector=app.kubernetes.io/component=operator")
        questions = (
            ("get", "pods", "--all-namespaces", "-owide"),
            ("get", "pisvc", NAME, "-oyaml"),
            ("get", "events"),
            ("logs", *operator, "--prefix", "--tail=60"),
        )
        return "\n".join(self.cluster.try_kubectl(*question).stdout for question in questions)

    def do(self, fault: Fault) -> Done:
        """Do the fault; returns when the cluster is left alone again."""
        match fault.kind:
            case Kind.API_SERVER:
                return self._stop_api_server((signal.SIGTERM, signal.SIGKILL)[fault.pick % 2])
            case Kind.ETCD:
                processes.freeze_in_bursts(
                    processes.of_part("etcd", self._folder),
                    for_s=DISK_SLOW_S,
                    stopped_s=_STOPPED_S,
                    running_s=_RUNNING_S,
                )
                return Done("etcd")
            case Kind.LEADER:
                return self._kill(self._holder(), _CONTAINERS[fault.kind])
            case Kind.OPERATOR:
                operators = self.operators()
                return self._delete(operators[fault.pick % len(operators)])
            case Kind.SIDECAR | Kind.ENGINE:
                pods = self.pods()
                return self._kill(pods[fault.pick % len(pods)], _CONTAINERS[fault.kind])

    def _stop_api_server(self, how: signal.Signals) -> Done:
        pid = processes.of_part("kube-apiserver", self._folder)
        began_at = time.monotonic()
        os.kill(pid, how)
        processes.wait_for_end(pid, within_s=_API_SERVER_ENDS_WITHIN_S)
        ended_after_s = time.monotonic() - began_at
        self.watches.take(self.log.read())
        self.watches.lose_all()
        return Done(f"kube-apiserver, {how.name}, ended after {ended_after_s:.0f} s")

    def _kill(self, pod: Json, container: str) -> Done:
        container_id = _container_id(pod, container)
        pid = processes.of_container(container_id)
        # Before and after: a connection may be made in between, and closed ones stay for a while.
        ports = self._ports_to(pod)
        at = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        kill = Kill(at, ports | self._ports_to(pod))
        return Done(f"{pod['metadata']['name']}/{container}", container_id, kill)

    def _delete(self, pod: Json) -> Done:
        container_id = _container_id(pod, "operator")
        name = pod["metadata"]["name"]
        answer = self.api.delete(
            f"/api/v1/namespaces/{SYSTEM}/pods/{name}", params={"gracePeriodSeconds": 0}
        )
        answer.raise_for_status()
        return Done(name, container_id)

    def _ports_to(self, pod: Json) -> frozenset[int]:
        beside = processes.of_part("etcd", self._folder)
        return processes.ports_to(pod["status"]["podIP"], beside=beside)

    @property
    def _folder(self) -> Path:
        return self.cluster.kubeconfig.parent

    def _holder(self) -> Json:
        lease = self._lease()
        found = self.operators()
        return next(
            pod for pod in found if pod["metadata"]["name"] == lease["spec"]["holderIdentity"]
        )

    def _leader(self, operators: list[Json]) -> Leader | None:
        holder = self._lease()["spec"].get("holderIdentity")
        for pod in operators:
            if pod["metadata"]["name"] == holder and is_ready(pod):
                return _leader_in(pod)
        return None

    def _lease(self) -> Json:
        return self._get(f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/{RELEASE}")

    def _pods(self, namespace: str, label: str) -> list[Json]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        found: list[Json] = self._get(path, labelSelector=label)["items"]
        return found

    def _get(self, path: str, **query: str) -> Json:
        answer = self.api.get(path, params=query)
        answer.raise_for_status()
        found: Json = answer.json()
        return found


@contextmanager
def world() -> Iterator[World]:
    """Start a cluster, install the chart, apply the service, and wait until it is Ready."""
    returns = {"kube-apiserver": API_SERVER_AWAY_S}
    with start.whole(returns=returns, node_grace=NODE_GRACE) as cluster:
        repository, tag = cluster.images["operator"].split(":")
        values = {
            "replicaCount": REPLICAS,
            "image": {"repository": repository, "tag": tag},
            "engineImage": cluster.images["engine"],
            "sidecarImage": cluster.images["sidecar"],
        }
        with cluster.helm(SYSTEM) as helm:
            helm.install(CHART, RELEASE, values, create_namespace=True, wait="watcher", timeout=300)
        cluster.kubectl("apply", "--filename=-", input=json.dumps(_manifest()))
        ready = ("wait", "--for=condition=Ready", f"pisvc/{NAME}")
        cluster.kubectl(*ready, f"--timeout={_SET_UP_WITHIN_S:.0f}s", timeout_s=_SET_UP_WITHIN_S)
        assert cluster.audit_log is not None
        with _api(cluster) as api, cluster.audit_log.open() as log:
            yield World(cluster, api, log)


def _api(cluster: Cluster) -> httpx.Client:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    trusted = ssl.create_default_context(
        cafile=config["clusters"][0]["cluster"]["certificate-authority"]
    )
    token = config["users"][0]["user"]["token"]
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=cluster.url, headers=headers, verify=trusted, timeout=5.0)


def _leader_in(pod: Json) -> Leader | None:
    try:
        answer = httpx.get(f"http://{pod['status']['podIP']}:8080/metrics", timeout=5.0)
    except httpx.HTTPError:
        return None
    values = {
        (sample.name, sample.labels.get("result", "")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    return Leader(
        process=_container_id(pod, "operator"),
        is_leading=values.get(("paceline_operator_is_leader", "")) == 1.0,
        num_rounds=values.get(("paceline_operator_tuning_rounds_total", "ok"), 0.0),
    )


def _container_id(pod: Json, container: str) -> str:
    return next(str(found["containerID"]) for found in statuses(pod) if found["name"] == container)


def _manifest() -> Json:
    return {
        "apiVersion": "serving.paceline.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {
            "model": {"uri": "builtin://smollm2-135m-instruct"},
            "engine": {
                "maxModelLen": 1024,
                "capacity": {"maxBatchSize": 16, "maxTokenBudget": 512},
            },
            # Targets that a busy machine cannot miss: nothing is refused while they hold.
            "sla": {"ttft": {"p99": "60s"}, "itl": {"p99": "10s"}},
            "replicas": REPLICAS,
            "resources": {"gpu": {"count": 0}, "cpu": "300m", "memory": "2Gi"},
        },
    }
