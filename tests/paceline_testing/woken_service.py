"""A service that its gateway wakes: the examples of docs/gateways.md, applied in their order.

All is real and in one cluster with a node: Envoy Gateway by its chart, Prometheus and its operator,
KEDA, and Paceline's operator and pods. Only the parts of Prometheus and KEDA run beside the node.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from local_cluster import coredns, network, start
from local_cluster.cluster import Cluster
from local_cluster.gateway_chart import GatewayImages, gateway_installed
from local_cluster.keda import keda
from local_cluster.monitoring import LABELS, Stack, monitoring
from paceline_testing.answering_gateway import answering_gateway
from paceline_testing.examples import documents_of
from paceline_testing.rolled_service import WITHIN_S, chart_installed
from paceline_testing.waiting import wait_until

NAME: Final = "chat"
_SYSTEM: Final = "paceline-system"
_JOBS: Final = {
    f"podMonitor/{_SYSTEM}/{_SYSTEM}/0",
    "podMonitor/envoy-gateway-system/envoy-requests/0",
}
_COOLDOWN_S: Final = 10


@dataclass(frozen=True, slots=True)
class WokenService:
    """The service, its gateway, and who counts the gateway's requests."""

    cluster: Cluster
    stack: Stack
    url: str
    """The base URL of the gateway."""
    folder: Path

    def kubectl(self, *args: str) -> str:
        """Run kubectl."""
        return self.cluster.kubectl(*args)

    def wanted(self) -> int:
        """`spec.replicas`, which the autoscaler writes."""
        spec = json.loads(self.kubectl("get", "pisvc", NAME, "-ojson"))["spec"]
        return int(spec.get("replicas", 1))

    def pods(self) -> list[dict[str, Any]]:
        """The service's pods, those that leave included."""
        label = f"--selector=serving.paceline.dev/service={NAME}"
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", "pods", label, "-ojson"))[
            "items"
        ]
        return found

    def slept(self) -> None:
        """Wait until KEDA has seen no request for so long that no pod is left."""
        try:
            wait_until(
                lambda: self.wanted() == 0 and not self.pods(), within_s=WITHIN_S, every_s=0.5
            )
        except AssertionError as late:
            raise AssertionError(f"{late}\n{self.stands()}") from late

    def stands(self) -> str:
        """Describe the objects and what Prometheus and KEDA say, for a test that fails."""
        told = self.kubectl("describe", "scaledobject,hpa,pisvc")
        asked = self.stack.query('envoy_http_downstream_rq_total{job!=""}')
        logs = [path.read_text()[-3000:] for path in self.folder.glob("keda-*.log")]
        return "\n".join([told, json.dumps(asked), *logs])


@contextmanager
def woken_service(folder: Path) -> Iterator[WokenService]:
    """Start everything and apply the examples; the service has one pod, and nobody asks it."""
    images, names = GatewayImages.made(), coredns.image()
    with start.whole(archives=dict([images.gateway, images.envoy, names])) as cluster:
        coredns.serve(cluster, names[0])
        with (
            gateway_installed(cluster, images, folder),
            monitoring(cluster, folder) as stack,
            keda(cluster, folder, address=network.MACHINE),
        ):
            stack.begin_operator()
            monitors = {"podMonitor": True, "labels": LABELS}
            with chart_installed(cluster, _SYSTEM, monitoring=monitors):
                yield _in_order(cluster, stack, folder)


def _in_order(cluster: Cluster, stack: Stack, folder: Path) -> WokenService:
    """The steps of docs/gateways.md."""

    def apply(name: str) -> None:
        found = [_here(each, stack) for each in documents_of(name)]
        cluster.kubectl("apply", "--filename=-", input=yaml.safe_dump_all(found))

    apply("gateway/gateway.yaml")
    apply("gateway/service.yaml")
    cluster.kubectl("wait", "--for=condition=Ready", f"pisvc/{NAME}", "--timeout=600s")
    url = answering_gateway(cluster)
    apply("envoy-monitor.yaml")
    stack.begin_prometheus(jobs=_JOBS)
    for name in ("keda.yaml", "gateway/from-zero.yaml", "keda-from-zero.yaml"):
        apply(name)
    cluster.kubectl("wait", "--for=condition=Ready", f"scaledobject/{NAME}", "--timeout=120s")
    return WokenService(cluster, stack, url, folder)


def _here(found: dict[str, Any], stack: Stack) -> dict[str, Any]:
    """The example with this Prometheus, and quicker to go to sleep: nobody waits a quarter hour."""
    match found["kind"]:
        case "PodMonitor":
            found["metadata"]["labels"] = LABELS
        case "ScaledObject":
            if "cooldownPeriod" in found["spec"]:
                found["spec"]["cooldownPeriod"] = _COOLDOWN_S
            for trigger in found["spec"]["triggers"]:
                metadata = trigger["metadata"]
                metadata["serverAddress"] = stack.prometheus
                metadata["query"] = metadata["query"].replace("[2m]", "[30s]")
    return found
