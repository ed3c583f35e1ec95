"""Prometheus Operator, Prometheus, Alertmanager and prometheus-adapter beside a cluster.

The Prometheus Operator selects monitors and rules by label and turns them into Prometheus's
configuration, as in a user's cluster. Its pods would only mount that configuration, so Prometheus
runs here on the very files.
"""

import base64
import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from local_cluster import go_binaries, machine
from local_cluster.cluster import Cluster
from local_cluster.errors import ClusterFailedError
from local_cluster.go_binaries import built, source_of
from paceline_testing.ending import end

Json = dict[str, Any]

NAMESPACE: Final = "monitoring"
NOBODY: Final = "http://127.0.0.1:9/"
"""A webhook that nothing listens on."""
LABELS: Final = {"release": "monitoring"}
"""What a monitor or a rule must carry to be taken."""
_OPERATOR: Final = "github.com/prometheus-operator/prometheus-operator"
_NAME: Final = "main"
_READY_WITHIN_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs, and where it can be asked."""

    cluster: Cluster
    folder: Path
    webhook: str
    """Where Alertmanager sends its notifications."""
    address: str
    _processes: ExitStack = field(default_factory=ExitStack)

    @property
    def prometheus(self) -> str:
        """Return the base URL of Prometheus."""
        return f"http://{self.address}:9090"

    def query(self, expression: str) -> list[Json]:
        """Ask Prometheus for an instant vector."""
        return self._ask("query", query=expression)["result"]  # type: ignore[no-any-return]

    def targets(self) -> list[Json]:
        """Return what Prometheus scrapes."""
        return self._ask("targets", state="active")["activeTargets"]  # type: ignore[no-any-return]

    def alerts(self) -> list[Json]:
        """Return the alerts that are pending or fire."""
        return self._ask("alerts")["alerts"]  # type: ignore[no-any-return]

    def begin_operator(self) -> None:
        """Bring the CRDs and run the Prometheus Operator."""
        crds = source_of(go_binaries.PROMETHEUS_OPERATOR, _OPERATOR) / "example"
        folder = f"--filename={crds / 'prometheus-operator-crd'}"
        self.cluster.kubectl("apply", "--server-side", folder)
        self.cluster.apply(_accounts())
        self._spawn(
            "prometheus-operator",
            [
                str(built(go_binaries.PROMETHEUS_OPERATOR) / "operator"),
                f"-web.listen-address={self.address}:8080",
                "-kubelet-endpoints=false",
            ],
            environment={"KUBECONFIG": str(self.cluster.kubeconfig)},
        )

    def begin_prometheus(self, *, jobs: set[str]) -> None:
        """Run Prometheus as soon as it was told to scrape all these jobs, and Alertmanager."""
        token = self.folder / "prometheus.token"
        created = self.cluster.kubectl("create", "token", "prometheus", f"--namespace={NAMESPACE}")
        token.write_text(created.strip())
        self.cluster.apply([_prometheus(self.cluster, token), self._alertmanagers()])
        _wait(
            lambda: jobs <= self._write_configuration(), "the Prometheus Operator's configuration"
        )
        self._spawn(
            "prometheus-alertmanager",
            [
                "prometheus-alertmanager",
                f"--config.file={self._alertmanager_file()}",
                f"--storage.path={self.folder / 'alertmanager'}",
                f"--web.listen-address={self.address}:9093",
                "--cluster.listen-address=",
            ],
            ready=f"http://{self.address}:9093/-/ready",
        )
        self._spawn(
            "prometheus",
            [
                str(built(go_binaries.PROMETHEUS) / "prometheus"),
                f"--config.file={self.folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={self.folder / 'tsdb'}",
                f"--web.listen-address={self.address}:9090",
            ],
            ready=f"{self.prometheus}/-/ready",
        )

    def begin_adapter(self, rules: list[Json]) -> None:
        """Serve `custom.metrics.k8s.io` from Prometheus by these rules of the adapter."""
        config = self.folder / "adapter.yaml"
        config.write_text(yaml.safe_dump({"rules": rules}))
        kubeconfig = self.cluster.kubeconfig
        self._spawn(
            "prometheus-adapter",
            [
                str(built(go_binaries.PROMETHEUS_ADAPTER) / "adapter"),
                f"--config={config}",
                f"--prometheus-url={self.prometheus}",
                f"--lister-kubeconfig={kubeconfig}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
                f"--bind-address={self.address}",
                "--secure-port=6443",
                f"--cert-dir={self.folder / 'adapter'}",
                "--metrics-relist-interval=10s",
                "--metrics-max-age=5m",
            ],
        )
        self.cluster.apply(_extension(self.address))
        available = "--for=condition=Available"
        for version in ("v1beta1", "v1beta2"):
            name = f"apiservice/{version}.custom.metrics.k8s.io"
            self.cluster.kubectl("wait", available, name, f"--timeout={_READY_WITHIN_S:.0f}s")

    def close(self) -> None:
        """End what runs, the last one first."""
        self._processes.close()

    def _alertmanagers(self) -> Json:
        """Name our Alertmanager to Prometheus: its pod is none of the cluster's."""
        static = [{"static_configs": [{"targets": [f"{self.address}:9093"]}]}]
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "alertmanagers", "namespace": NAMESPACE},
            "stringData": {"static.yaml": yaml.safe_dump(static)},
        }

    def _alertmanager_file(self) -> Path:
        """Send each alert at once, and its end, to the webhook."""
        path = self.folder / "alertmanager.yaml"
        hook = {"url": self.webhook, "send_resolved": True}
        timing = {"group_wait": "1s", "group_interval": "5s", "repeat_interval": "1h"}
        route = {"receiver": "webhook", "group_by": ["alertname"], **timing}
        receivers = [{"name": "webhook", "webhook_configs": [hook]}]
        path.write_text(yaml.safe_dump({"route": route, "receivers": receivers}))
        return path

    def _write_configuration(self) -> set[str]:
        """Lay the files where Prometheus looks, as the pod's mounts do; return its jobs."""
        place = f"--namespace={NAMESPACE}"
        secret = self.cluster.try_kubectl("get", "secret", f"prometheus-{_NAME}", place, "-ojson")
        if secret.returncode != 0:
            return set()
        packed = json.loads(secret.stdout)["data"]["prometheus.yaml.gz"]
        # The reloader beside Prometheus says which shard it is.
        text = gzip.decompress(base64.b64decode(packed)).decode().replace("$(SHARD)", "0")
        (self.folder / "prometheus.yaml").write_text(
            text.replace("/etc/prometheus", str(self.folder))
        )
        for rules in self._rule_files():
            folder = self.folder / "rules" / rules["metadata"]["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in rules.get("data", {}).items():
                (folder / name).write_text(content)
        return {job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]}

    def _rule_files(self) -> list[Json]:
        listed = self.cluster.kubectl("get", "configmaps", f"--namespace={NAMESPACE}", "-ojson")
        prefix = f"prometheus-{_NAME}-rulefiles-"
        items: list[Json] = json.loads(listed)["items"]
        return [item for item in items if item["metadata"]["name"].startswith(prefix)]

    def _spawn(
        self,
        name: str,
        argv: list[str],
        *,
        environment: Mapping[str, str] | None = None,
        ready: str | None = None,
    ) -> None:
        log = self.folder / f"{name}.log"
        with log.open("ab") as sink:
            process = subprocess.Popen(
                argv,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=os.environ | dict(environment or {}),
            )
        self._processes.callback(end, process)
        if ready is not None:
            _wait(lambda: _answers(ready), f"{name}, see {log}")

    def _ask(self, path: str, **query: str) -> Json:
        answer = httpx.get(f"{self.prometheus}/api/v1/{path}", params=query, timeout=30)
        answer.raise_for_status()
        data: Json = answer.json()["data"]
        return data


@contextmanager
def monitoring(cluster: Cluster, folder: Path, *, webhook: str = NOBODY) -> Iterator[Stack]:
    """Yield a stack of which nothing runs yet; end what was begun."""
    machine.prepare_monitoring()
    address = str(IPv4Address("127.128.0.0") + os.getpid())
    stack = Stack(cluster, folder, webhook, address)
    try:
        yield stack
    finally:
        stack.close()


def _prometheus(cluster: Cluster, token: Path) -> Json:
    """Describe a Prometheus as a user does: what it takes is chosen by label."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]
    chosen = {"matchLabels": LABELS}
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "Prometheus",
        "metadata": {"name": _NAME, "namespace": NAMESPACE},
        "spec": {
            "version": "v3.5.0",  # the newest that the Prometheus Operator knows
            "replicas": 0,
            "serviceAccountName": "prometheus",
            "scrapeInterval": "5s",
            "evaluationInterval": "5s",
            "podMonitorSelector": chosen,
            "podMonitorNamespaceSelector": {},
            "ruleSelector": chosen,
            "ruleNamespaceSelector": {},
            "additionalAlertManagerConfigs": {"name": "alertmanagers", "key": "static.yaml"},
            "apiserverConfig": {
                "host": config["server"],
                "authorization": {"credentialsFile": str(token)},
                "tlsConfig": {"caFile": config["certificate-authority"]},
            },
        },
    }


def _accounts() -> tuple[Json, ...]:
    """Let Prometheus find pods."""
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "prometheus"}
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": NAMESPACE}
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}]
    rbac = "rbac.authorization.k8s.io/v1"
    return (
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": "prometheus", "namespace": NAMESPACE},
        },
        {
            "apiVersion": rbac,
            "kind": "ClusterRole",
            "metadata": {"name": "prometheus"},
            "rules": rules,
        },
        {
            "apiVersion": rbac,
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "prometheus"},
            "roleRef": role,
            "subjects": [subject],
        },
    )


def _extension(address: str) -> Iterator[Json]:
    """Register the adapter; an ExternalName leads the API server out of the cluster's network."""
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "prometheus-adapter", "namespace": NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": address},
    }
    for version in ("v1beta1", "v1beta2"):
        yield {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.custom.metrics.k8s.io"},
            "spec": {
                "group": "custom.metrics.k8s.io",
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {
                    "name": "prometheus-adapter",
                    "namespace": NAMESPACE,
                    "port": 6443,
                },
            },
        }


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).is_success
    except httpx.TransportError:
        return False


def _wait(reached: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + _READY_WITHIN_S
    while not reached():
        if time.monotonic() > give_up_at:
            raise ClusterFailedError(f"not there within {_READY_WITHIN_S:.0f} s: {what}")
        time.sleep(0.5)
