"""The Kubernetes API as the operator uses it, on the kubernetes client's asyncio package."""

import asyncio
import json
from dataclasses import dataclass
from typing import Final, Protocol
from urllib.request import getproxies

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration

from paceline_api.labels import MANAGER, Manifest
from paceline_operator import __version__
from paceline_operator.errors import ApiError, from_answer
from paceline_operator.metrics import Metrics

# A write that takes longer than the Lease has to spare could be done after another leader's.
WRITE_TIMEOUT_S: Final = 4.0
_READ_TIMEOUT_S: Final = 30.0
_NOT_FOUND: Final = 404
_ERRORS: Final = 400
_PAGE: Final = 500
_METADATA_ONLY: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

# Every kind that the operator touches; tests/seams compares it with the chart's RBAC.
RESOURCES: Final[dict[str, tuple[str, str]]] = {
    "BackendTrafficPolicy": ("gateway.envoyproxy.io/v1alpha1", "backendtrafficpolicies"),
    "ConfigMap": ("v1", "configmaps"),
    "Deployment": ("apps/v1", "deployments"),
    "Event": ("events.k8s.io/v1", "events"),
    "InferencePool": ("inference.networking.k8s.io/v1", "inferencepools"),
    "InferenceService": ("serving.paceline.dev/v1alpha1", "inferenceservices"),
    "Lease": ("coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies"),
    "Pod": ("v1", "pods"),
    "PodDisruptionBudget": ("policy/v1", "poddisruptionbudgets"),
    "PodMonitor": ("monitoring.coreos.com/v1", "podmonitors"),
    "PrometheusRule": ("monitoring.coreos.com/v1", "prometheusrules"),
    "Secret": ("v1", "secrets"),
    "Service": ("v1", "services"),
    "ServiceAccount": ("v1", "serviceaccounts"),
}


class KubernetesApi(Protocol):
    """What the operator asks of an API server."""

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Read one object; None where there is none."""
        ...

    async def versions(self, kind: str, namespace: str, *, labels: str = "") -> dict[str, int]:
        """List objects as `namespace/name` and version; of all namespaces where it is empty.

        `labels` is a selector; without one every object is listed.
        """
        ...

    async def find(self, kind: str, namespace: str, *, fields: str) -> list[Manifest]:
        """List the objects of a field selector, one page of them."""
        ...

    async def kinds(self, version: str) -> frozenset[str]:
        """Name the kinds of `group/version` that the cluster serves; none where it has no such."""
        ...

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply: own exactly the fields of the manifest.

        ConflictError where it names a resourceVersion that is not the object's any more.
        """
        ...

    async def merge(self, manifest: Manifest) -> Manifest:
        """Change the fields that the manifest names; ConflictError at another resourceVersion."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object; ConflictError where it exists."""
        ...

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object that has not changed since it was read; else ConflictError."""
        ...

    async def delete(self, manifest: Manifest) -> None:
        """Delete this very object, by its uid; one that is gone is no error."""
        ...


@dataclass(frozen=True, slots=True)
class KubernetesClient:
    """KubernetesApi over HTTP."""

    api: ApiClient
    metrics: Metrics

    async def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """Read one object; None where there is none."""
        try:
            return await self._request("get", "GET", _path(kind, namespace, name))
        except ApiError as problem:
            if problem.code == _NOT_FOUND:
                return None
            raise

    async def versions(self, kind: str, namespace: str, *, labels: str = "") -> dict[str, int]:
        """List objects as `namespace/name` and version; of all namespaces where it is empty."""
        found: dict[str, int] = {}
        first = [("limit", str(_PAGE)), *([("labelSelector", labels)] if labels else [])]
        query = first
        while True:
            page = await self._request(
                "list", "GET", _path(kind, namespace), query=query, accept=_METADATA_ONLY
            )
            for item in page["items"] or ():  # no objects are null, not an empty list
                metadata = item["metadata"]
                key = f"{metadata['namespace']}/{metadata['name']}"
                found[key] = int(metadata["resourceVersion"])
            rest = page["metadata"].get("continue")
            if not rest:
                return found
            query = [*first, ("continue", rest)]

    async def find(self, kind: str, namespace: str, *, fields: str) -> list[Manifest]:
        """List the objects of a field selector, one page of them."""
        query = [("limit", str(_PAGE)), ("fieldSelector", fields)]
        page = await self._request("list", "GET", _path(kind, namespace), query=query)
        return [*(page["items"] or ())]

    async def kinds(self, version: str) -> frozenset[str]:
        """Name the kinds of `group/version` that the cluster serves; none where it has no such."""
        try:
            found = await self._request("get", "GET", f"/apis/{version}")
        except ApiError as problem:
            if problem.code == _NOT_FOUND:
                return frozenset()
            raise
        return frozenset(resource["kind"] for resource in found.get("resources") or ())

    async def apply(self, manifest: Manifest, *, subresource: str = "") -> Manifest:
        """Server-side apply: own exactly the fields of the manifest."""
        path = _path_of(manifest) + (f"/{subresource}" if subresource else "")
        return await self._request(
            "apply",
            "PATCH",
            path,
            body=manifest,
            query=[("fieldManager", MANAGER), ("force", "true")],
            content_type="application/apply-patch+yaml",
        )

    async def merge(self, manifest: Manifest) -> Manifest:
        """Change the fields that the manifest names; ConflictError at another resourceVersion."""
        return await self._request(
            "patch",
            "PATCH",
            _path_of(manifest),
            body=manifest,
            query=[("fieldManager", MANAGER)],
            content_type="application/merge-patch+json",
        )

    async def create(self, manifest: Manifest) -> Manifest:
        """Create an object; ConflictError where it exists."""
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        # Else the API server would drop what it does not know, where apply is refused.
        query = [("fieldManager", MANAGER), ("fieldValidation", "Strict")]
        return await self._request("create", "POST", path, body=manifest, query=query)

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object that has not changed since it was read; else ConflictError."""
        query = [("fieldManager", MANAGER)]
        return await self._request("update", "PUT", _path_of(manifest), body=manifest, query=query)

    async def delete(self, manifest: Manifest) -> None:
        """Delete this very object, by its uid; one that is gone is no error."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {"uid": manifest["metadata"]["uid"]},
            "propagationPolicy": "Background",
        }
        try:
            await self._request("delete", "DELETE", _path_of(manifest), body=body)
        except ApiError as problem:
            if problem.code != _NOT_FOUND:
                raise

    async def _request(
        self,
        verb: str,
        method: str,
        path: str,
        *,
        body: Manifest | None = None,
        query: list[tuple[str, str]] | None = None,
        content_type: str = "application/json",
        accept: str = "application/json",
    ) -> Manifest:
        limit_s = _READ_TIMEOUT_S if method == "GET" else WRITE_TIMEOUT_S
        serialized = await self.api.param_serialize(
            method,
            path,
            # The API server gives up with us: what we took for lost must not be done later.
            query_params=[*(query or ()), ("timeout", f"{limit_s:g}s")],
            header_params={"Accept": accept, "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            async with asyncio.timeout(limit_s):
                answer = await self.api.call_api(*serialized, _request_timeout=limit_s)
                text = await answer.read()
        except (TimeoutError, aiohttp.ClientError) as problem:
            self.metrics.api_requests.labels(verb, "0").inc()
            raise ApiError(verb, path, 0, repr(problem)) from problem
        self.metrics.api_requests.labels(verb, str(answer.status)).inc()
        if answer.status >= _ERRORS:
            declined = from_answer(verb, path, answer.status, text)
            declined.retry_after_s = _seconds(answer.headers.get("Retry-After"))
            raise declined
        return _object(verb, path, answer.status, text)


async def connect() -> ApiClient:
    """Use the pod's service account, or the kubeconfig where there is none."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except config.ConfigException:
        await config.load_kube_config(client_configuration=configuration)
    # Looked for in the environment at each request, a proxy costs two changes of thread.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    client = ApiClient(configuration)
    client.user_agent = f"paceline-operator/{__version__}"
    return client


def _seconds(text: str | None) -> float:
    """Read Retry-After; API servers give seconds, a date is none of them."""
    return float(text) if text and text.isascii() and text.isdigit() else 0.0


def _object(verb: str, path: str, code: int, text: bytes) -> Manifest:
    """Read an answer; something between us and the API server may have given another."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(verb, path, code, f"no object in JSON, but {text[:100]!r}")
    return found


def _path(kind: str, namespace: str, name: str = "") -> str:
    version, plural = RESOURCES[kind]
    root = "api" if version == "v1" else "apis"
    where = f"/namespaces/{namespace}" if namespace else ""
    path = f"/{root}/{version}{where}/{plural}"
    return f"{path}/{name}" if name else path


def _path_of(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return _path(manifest["kind"], metadata["namespace"], metadata["name"])
