"""Envoy's rate limit service and its Redis, for limits that all Envoys of a gateway share.

The service is a Deployment that Envoy Gateway makes itself once its configuration names a Redis.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from local_cluster.base_image import BaseImage, program_image
from local_cluster.cluster import Cluster
from local_cluster.go_binaries import RATE_LIMIT, built
from paceline_api.labels import Manifest
from paceline_testing.examples import documents_of

_REDIS: Final = "redis"
"""Its namespace, its Deployment and its Service, as examples/envoy-gateway.yaml looks for it."""


@dataclass(frozen=True, slots=True)
class RateLimitImages:
    """The images of the service and of its Redis: the references, and the archives."""

    service: tuple[str, Path]
    redis: tuple[str, Path]

    @classmethod
    def made(cls) -> "RateLimitImages":
        """Pack both: the service from its Go module, Redis from Debian's package."""
        redis = BaseImage(("redis-server",))
        # Envoy Gateway starts `/bin/ratelimit`.
        service = program_image(built(RATE_LIMIT) / "ratelimit", folder="bin")
        return cls(service, (redis.reference, redis.archive()))

    def gateway(self) -> dict[str, Any]:
        """Return the configuration of Envoy Gateway that the example has.

        It only waits longer for the service: a machine under load may not answer within a second.
        """
        (values,) = documents_of("envoy-gateway.yaml")
        gateway: dict[str, Any] = values["config"]["envoyGateway"]
        gateway["rateLimit"]["timeout"] = "10s"
        return gateway


def serve_redis(cluster: Cluster, reference: str) -> None:
    """Run a Redis of this image, and wait until it answers."""
    cluster.apply(_objects(reference))
    place, within = f"--namespace={_REDIS}", "--timeout=120s"
    cluster.kubectl("rollout", "status", f"deployment/{_REDIS}", place, within)


def redis(cluster: Cluster, *command: str) -> list[str]:
    """Return the lines that Redis answers to a command."""
    place = (f"--namespace={_REDIS}", f"deployment/{_REDIS}")
    return cluster.kubectl("exec", *place, "--", "redis-cli", *command).splitlines()


@contextmanager
def redis_stopped(cluster: Cluster) -> Iterator[None]:
    """Take Redis away until the block ends; the next one knows nothing of this one's counts."""
    place, within = f"--namespace={_REDIS}", "--timeout=120s"
    cluster.kubectl("scale", f"deployment/{_REDIS}", place, "--replicas=0")
    cluster.kubectl("wait", "pod", f"--selector=app={_REDIS}", "--for=delete", place, within)
    try:
        yield
    finally:
        cluster.kubectl("scale", f"deployment/{_REDIS}", place, "--replicas=1")
        cluster.kubectl("rollout", "status", f"deployment/{_REDIS}", place, within)


def _objects(reference: str) -> Iterator[Manifest]:
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _REDIS}}
    named, labels = {"name": _REDIS, "namespace": _REDIS}, {"app": _REDIS}
    yield {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": named,
        "spec": {"selector": labels, "ports": [{"port": 6379}]},
    }
    command = ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]
    container = {
        "name": _REDIS,
        "image": reference,
        "command": command,
        "readinessProbe": {"exec": {"command": ["redis-cli", "ping"]}},
    }
    yield {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": named,
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
