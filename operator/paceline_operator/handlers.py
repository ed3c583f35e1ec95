"""Every kopf decorator: login, events and indexes, so that kopf writes nothing on any object.

Creating and updating handlers would add an annotation, daemons and timers a finalizer.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import kopf

from paceline_api.inference_service import GROUP, PLURAL, VERSION
from paceline_api.labels import MANAGED_BY, MANAGER, OWNED, SERVICE_LABEL, Manifest
from paceline_operator.compact import compact
from paceline_operator.field_managers import is_of_creation
from paceline_operator.kopf_storage import NoDiffBase, NoProgress
from paceline_operator.operation import Operation
from paceline_operator.watch_pace import Backoffs

_OURS: Mapping[str, Any] = {MANAGED_BY: MANAGER, SERVICE_LABEL: kopf.PRESENT}
_CHILDREN = (
    ("", "v1", "configmaps"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "deployments"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
)
_PODS = ("", "v1", "pods")


@dataclass(frozen=True, slots=True)
class Indexed:
    """`Watched`, on kopf's indexes."""

    services_index: kopf.Index[str, Manifest]
    children_index: kopf.Index[str, Manifest]
    pods_index: kopf.Index[str, Manifest]

    def keys(self) -> Iterable[str]:
        """Name every InferenceService."""
        return [*self.services_index]

    def service(self, key: str) -> Manifest | None:
        """Give the InferenceService itself."""
        return next(iter(self.services_index.get(key, ())), None)

    def children(self, key: str) -> Iterable[Manifest]:
        """Give the objects that carry our labels for it."""
        return [*self.children_index.get(key, ())]

    def pods(self, key: str) -> Iterable[Manifest]:
        """Give its pods."""
        return [*self.pods_index.get(key, ())]

    def owned(self) -> Iterable[tuple[str, Manifest]]:
        """Give all children and pods of all services, each with its kind."""
        children = [child for key in [*self.children_index] for child in self.children(key)]
        pods = [pod for key in [*self.pods_index] for pod in self.pods(key)]
        return [*((child["kind"], child) for child in children), *(("Pod", pod) for pod in pods)]


@kopf.on.login()
async def login(memo: Operation, **kwargs: Any) -> kopf.AiohttpSession | None:
    """Prefer the service account; a laptop has none."""
    account = kopf.login_with_service_account(**kwargs)
    if account is not None:
        return memo.watch_pace.session(replace(account, server=_server_in_cluster(account.server)))
    found = kopf.login_with_kubeconfig(**kwargs)
    return None if found is None else memo.watch_pace.session(found)


@kopf.on.startup()
async def start(
    memo: Operation,
    settings: kopf.OperatorSettings,
    **indexes: Any,
) -> None:
    """Start our own loops once kopf's settings are ours."""
    configure(settings)
    await memo.start(Indexed(indexes["services"], indexes["children"], indexes["pods"]))


@kopf.on.cleanup()
async def stop(memo: Operation, **_: Any) -> None:
    """Stop our own loops."""
    await memo.stop()


def configure(settings: kopf.OperatorSettings) -> None:
    """Fill kopf's settings: no peering, no posting, and a watch on our own children only."""
    settings.posting.enabled = False
    settings.persistence.diffbase_storage = NoDiffBase()
    settings.persistence.progress_storage = NoProgress()
    # The kinds are known, and operation.start waits for ours: neither definitions nor namespaces
    # need be watched.
    settings.scanning.disabled = True
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = Backoffs()
    # A list that breaks off in its body is asked for again after this, without backing off.
    settings.watching.reconnect_backoff = 1.0
    settings.execution.default_backoff = 5  # a failed start is tried again; readiness tells of it
    settings.watching.server_timeout = 300
    for kind in (*_CHILDREN, _PODS):
        settings.watching.label_selectors[kind] = OWNED


@kopf.index(GROUP, VERSION, PLURAL, id="services")
async def index_service(body: kopf.Body, **_: Any) -> dict[str, Manifest]:
    """Index every InferenceService."""
    return {_key(body): _plain(body)}


@kopf.on.event(GROUP, VERSION, PLURAL)
async def service_changed(body: kopf.Body, memo: Operation, **_: Any) -> None:
    """Queue a service whose object changed."""
    memo.service_changed(_key(body), body.metadata)


@kopf.index(*_PODS, labels=_OURS, id="pods")
async def index_pod(body: kopf.Body, **_: Any) -> dict[str, Manifest]:
    """Index the pods of every service."""
    return {_owner_key(body): _plain(body)}


async def index_child(body: kopf.Body, **_: Any) -> dict[str, Manifest]:
    """Index the children that we wrote."""
    return {_owner_key(body): _plain(body)}


async def owned_changed(body: kopf.Body, memo: Operation, **_: Any) -> None:
    """Queue the service of a child or pod that changed or is gone."""
    memo.owned_changed(_owner_key(body))


for _kind in _CHILDREN:
    kopf.index(*_kind, labels=_OURS, id="children")(index_child)
for _kind in (*_CHILDREN, _PODS):
    kopf.on.event(*_kind, labels=_OURS, id="owned_changed")(owned_changed)


def _key(body: kopf.Body) -> str:
    return f"{body.metadata.namespace}/{body.metadata.name}"


def _owner_key(body: kopf.Body) -> str:
    return f"{body.metadata.namespace}/{body.metadata.labels[SERVICE_LABEL]}"


def _plain(body: kopf.Body) -> Manifest:
    """Keep the object without the bookkeeping of field managers, which can outweigh the rest.

    Only that our POST manages something is remembered: apply must take that over.
    """
    metadata = dict(body["metadata"])
    entries = metadata.pop("managedFields", None) or ()
    if of_creation := [_bare(entry) for entry in entries if is_of_creation(entry)]:
        metadata["managedFields"] = of_creation
    plain: Manifest = compact(dict(body) | {"metadata": metadata})
    return plain


def _bare(entry: Manifest) -> Manifest:
    return {"manager": entry["manager"], "operation": entry["operation"]}


def _server_in_cluster(by_name: str) -> str:
    """Name the API server by the address that the kubelet gives each pod: it needs no DNS."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        return by_name
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
