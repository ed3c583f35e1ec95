"""The services of the benchmark: made, changed and deleted at once, and watched meanwhile."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from local_cluster.cluster import Cluster

_SERVICES = "/apis/serving.paceline.dev/v1alpha1"
_DEPLOYMENTS = "/apis/apps/v1/deployments"
_CONFIG_MAPS = "/api/v1/configmaps"
_OURS = "app.kubernetes.io/managed-by=paceline-operator"
_AT_ONCE = 16
_PER_NAMESPACE = 100

Key = str
"""`namespace/name` of a service."""


@dataclass(slots=True)
class Seen:
    """When the watch told of each object, in seconds since the epoch, by `namespace/name`."""

    created: dict[Key, float] = field(default_factory=dict)
    changed: dict[Key, float] = field(default_factory=dict)
    deleted: dict[Key, float] = field(default_factory=dict)

    def clear(self) -> None:
        """Begin another scene."""
        for times in (self.created, self.changed, self.deleted):
            times.clear()


def keys(count: int, *, first: int = 0) -> list[Key]:
    """Name services, a hundred to a namespace."""
    numbers = range(first, first + count)
    return [f"many-{number // _PER_NAMESPACE}/service-{number}" for number in numbers]


@dataclass(frozen=True, slots=True)
class Services:
    """Asks the API server as the administrator."""

    api: ApiClient
    deployments: Seen
    config_maps: Seen

    async def create(self, wanted: Sequence[Key]) -> dict[Key, float]:
        """Create them, as fast as the API server takes them; returns when each was there."""
        return await self._all(wanted, lambda key: self._ask("POST", _path(key, ""), _body(key)))

    async def change_sla(self, wanted: Sequence[Key], p99: str) -> dict[Key, float]:
        """Give each another target."""
        body = {"spec": {"sla": {"ttft": {"p99": p99}}}}
        return await self._all(wanted, lambda key: self._ask("PATCH", _path(key), body))

    async def delete(self, wanted: Sequence[Key]) -> dict[Key, float]:
        """Delete each."""
        return await self._all(wanted, lambda key: self._ask("DELETE", _path(key)))

    async def unready(self) -> int:
        """Count the services whose status does not speak of their present spec."""
        listed = await self._ask("GET", f"{_SERVICES}/inferenceservices")
        return sum(map(_is_behind, listed["items"]))

    async def _all(self, wanted: Sequence[Key], ask: Callable[[Key], Any]) -> dict[Key, float]:
        places, done = asyncio.Semaphore(_AT_ONCE), {}

        async def one(key: Key) -> None:
            async with places:
                await ask(key)
                done[key] = time.time()

        await asyncio.gather(*map(one, wanted))
        return done

    async def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        is_patch = method == "PATCH"
        kind = "application/merge-patch+json" if is_patch else "application/json"
        headers = {"Accept": "application/json", "Content-Type": kind}
        request = await self.api.param_serialize(
            method, path, header_params=headers, body=body, auth_settings=["BearerToken"]
        )
        answer = await self.api.call_api(*request, _request_timeout=60)
        text = await answer.read()
        if answer.status >= 400:
            raise RuntimeError(f"{method} {path}: {answer.status} {text.decode()[:300]}")
        return json.loads(text)  # type: ignore[no-any-return]


@asynccontextmanager
async def opened(cluster: Cluster) -> AsyncIterator[Services]:
    """Connect, and watch what the operator makes."""
    configuration = Configuration()
    await config.load_kube_config(str(cluster.kubeconfig), client_configuration=configuration)
    async with ApiClient(configuration) as api:
        services = Services(api, Seen(), Seen())
        async with asyncio.TaskGroup() as group:  # a watch that fails ends the benchmark
            watches = [
                group.create_task(_watch(api, _DEPLOYMENTS, services.deployments)),
                group.create_task(_watch(api, _CONFIG_MAPS, services.config_maps)),
            ]
            yield services
            for watch in watches:
                watch.cancel()


async def _watch(api: ApiClient, path: str, seen: Seen) -> None:
    """Note when what happened was told, by metadata alone."""
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    while True:
        query = [("watch", "true"), ("labelSelector", _OURS), ("timeoutSeconds", "3600")]
        request = await api.param_serialize(
            "GET",
            path,
            query_params=query,
            header_params={"Accept": accept},
            auth_settings=["BearerToken"],
        )
        answer = await api.call_api(*request, _request_timeout=3600)
        async for line in answer.response.content:
            _note(json.loads(line), seen)


def _is_behind(service: dict[str, Any]) -> bool:
    conditions = service.get("status", {}).get("conditions", [])
    generation = service["metadata"]["generation"]
    return not conditions or conditions[0]["observedGeneration"] != generation


def _note(event: dict[str, Any], seen: Seen) -> None:
    metadata = event["object"]["metadata"]
    service = metadata["labels"].get("serving.paceline.dev/service", metadata["name"])
    times = {"ADDED": seen.created, "MODIFIED": seen.changed, "DELETED": seen.deleted}
    times[event["type"]].setdefault(f"{metadata['namespace']}/{service}", time.time())


def _path(key: Key, name: str | None = None) -> str:
    namespace, of_service = key.split("/")
    root = f"{_SERVICES}/namespaces/{namespace}/inferenceservices"
    return root if name == "" else f"{root}/{of_service}"


def _body(key: Key) -> dict[str, Any]:
    return {
        "apiVersion": "serving.paceline.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": key.split("/")[1]},
        "spec": {
            "model": {"uri": "builtin://smollm2-135m-instruct"},
            "sla": {"ttft": {"p99": "500ms"}, "tpot": {"p99": "50ms"}},
        },
    }


def namespaces(wanted: Iterable[Key]) -> list[str]:
    """Name the namespaces that they are in."""
    return sorted({key.split("/")[0] for key in wanted})
