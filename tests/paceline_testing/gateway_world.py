"""A node with Envoy Gateway as its chart installs it, in front of two pods of a real service.

`gateway.yaml` and `service.yaml` of `examples/gateway` are applied as people do; only there are two
pods, which ask for less CPU.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from local_cluster import coredns, start
from local_cluster.cluster import Cluster, listed
from local_cluster.gateway_chart import NAMESPACE, GatewayImages, gateway_installed
from local_cluster.rate_limit import RateLimitImages, serve_redis
from paceline_api.labels import Manifest
from paceline_testing.answering_gateway import answering_gateway
from paceline_testing.gateway_objects import example
from paceline_testing.rolled_service import WITHIN_S, RolledService, chart_installed
from paceline_testing.waiting import wait_until

NAME: Final = "chat"
"""The service's."""
# Envoy's admin port is open on the pod's own loopback alone, and the image has no HTTP client.
_ASK_ENVOY: Final = r"""exec 3<>/dev/tcp/127.0.0.1/19000
printf 'GET %s HTTP/1.1\r\nHost: envoy\r\nConnection: close\r\n\r\n' "$0" >&3
cat <&3"""


@dataclass(frozen=True, slots=True)
class GatewayWorld:
    """The service, and where its gateway listens."""

    service: RolledService
    url: str

    def kubectl(self, *args: str, input: str | None = None) -> str:
        return self.service.cluster.kubectl(*args, input=input)

    def apply(self, objects: Sequence[Manifest]) -> None:
        self.service.cluster.apply(objects)

    def delete(self, objects: Sequence[Manifest]) -> None:
        self.kubectl("delete", "--filename=-", input=listed(objects))

    def pods(self) -> list[dict[str, Any]]:
        """The service's pods that stay."""
        label = f"--selector=serving.paceline.dev/service={NAME}"
        found = json.loads(self.kubectl("get", "pods", label, "-ojson"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def names(self) -> set[str]:
        """Return those pods' names."""
        return {pod["metadata"]["name"] for pod in self.pods()}

    def served(self) -> dict[str, float]:
        """How many requests each pod has answered."""
        return {pod["metadata"]["name"]: _answered(pod["status"]["podIP"]) for pod in self.pods()}

    def policy_conditions(self) -> dict[str, str]:
        """Return the conditions that Envoy Gateway reports for the operator's policy."""
        policy = json.loads(self.kubectl("get", "backendtrafficpolicy", NAME, "-ojson"))
        ancestors = policy.get("status", {}).get("ancestors", ())
        conditions = [each for ancestor in ancestors for each in ancestor["conditions"]]
        return {each["type"]: each["status"] for each in conditions}

    def envoy_clusters(self) -> str:
        """Return Envoy's configuration of the clusters that it balances."""
        return self._asked_of_envoy("/config_dump?resource=dynamic_active_clusters")

    def reports_between_answers(self) -> int:
        """How many reports Envoy has had from the pods' own port."""
        stats = self._asked_of_envoy("/stats?filter=lb_orca_oob.reports_received")
        lines = [line for line in stats.splitlines() if "reports_received: " in line]
        return sum(int(line.rsplit(" ", 1)[1]) for line in lines)

    def _asked_of_envoy(self, path: str) -> str:
        place = (f"--namespace={NAMESPACE}", "--container=envoy", self._envoy())
        return self.kubectl("exec", *place, "--", "bash", "-c", _ASK_ENVOY, path)

    def _envoy(self) -> str:
        label = "--selector=gateway.envoyproxy.io/owning-gateway-name=models"
        place = f"--namespace={NAMESPACE}"
        (pod,) = self.kubectl("get", "pods", label, place, "-oname").split()
        return pod


@contextmanager
def gateway_world(folder: Path) -> Iterator[GatewayWorld]:
    """Yield it once both pods answer; names are looked up in the cluster's own DNS."""
    images, limits, names = GatewayImages.made(), RateLimitImages.made(), coredns.image()
    archives = [images.gateway, images.envoy, limits.service, limits.redis, names]
    with start.whole(archives=dict(archives)) as cluster:
        coredns.serve(cluster, names[0])
        serve_redis(cluster, limits.redis[0])
        with (
            gateway_installed(cluster, images, folder, limits=limits),
            chart_installed(cluster, "paceline-system"),
        ):
            yield _served(cluster)


def _served(cluster: Cluster) -> GatewayWorld:
    service, route = example("service.yaml")
    rolled = RolledService(cluster, name=NAME, replicas=2)
    service["spec"]["replicas"] = rolled.replicas
    service["spec"]["resources"]["cpu"] = "300m"
    rolled.apply_spec(service["spec"])
    cluster.apply([*example("gateway.yaml"), route])
    wait_until(rolled.serves, within_s=WITHIN_S, every_s=0.5)
    return GatewayWorld(rolled, answering_gateway(cluster))


def _answered(address: str) -> float:
    text = httpx.get(f"http://{address}:8001/metrics", timeout=30).text
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith("paceline_requests_total{")
    )
