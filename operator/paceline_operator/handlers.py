"""All kopf handlers: login and raw events only, so that kopf writes nothing on any object.

Creating and updating handlers would add an annotation, daemons and timers a finalizer.
"""

import os
from dataclasses import replace
from typing import Any

import kopf

from paceline_api.inference_service import GROUP, PLURAL, VERSION
from paceline_api.labels import OWNED, SERVICE_LABEL
from paceline_operator.kopf_storage import NoDiffBase, NoProgress
from paceline_operator.operation import Operation
from paceline_operator.watch_pace import Backoffs

_CHILDREN = (
    ("", "v1", "configmaps"),
    ("", "v1", "serviceaccounts"),
    ("", "v1", "services"),
    ("apps", "v1", "deployments"),
    ("networking.k8s.io", "v1", "networkpolicies"),
    ("policy", "v1", "poddisruptionbudgets"),
)
_PODS = ("", "v1", "pods")
_DELETED = "DELETED"


@kopf.on.login()
async def login(memo: Operation, **kwargs: Any) -> kopf.AiohttpSession | None:
    """Log in with the service account, or with the kubeconfig where there is none."""
    account = kopf.login_with_service_account(**kwargs)
    if account is not None:
        return memo.watch_pace.session(replace(account, server=_server_in_cluster(account.server)))
    found = kopf.login_with_kubeconfig(**kwargs)
    return None if found is None else memo.watch_pace.session(found)


@kopf.on.startup()
async def start(memo: Operation, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Configure kopf, then start our own loops."""
    configure(settings)
    await memo.start()


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
    # Of a list of thousands no more than a page is in memory at once: kopf keeps an object for as
    # long as it waits for news of it.
    settings.watching.chunk_size = 100
    settings.queueing.idle_timeout = 0.5
    for kind in (*_CHILDREN, _PODS):
        settings.watching.label_selectors[kind] = OWNED


@kopf.on.event(GROUP, VERSION, PLURAL)
async def service_changed(body: kopf.Body, event: kopf.RawEvent, memo: Operation, **_: Any) -> None:
    """Note an InferenceService, and queue it."""
    key = _key(body)
    if event["type"] == _DELETED:
        memo.index.drop_service(key, body.metadata["uid"])
    else:
        memo.index.put_service(key, dict(body))
    memo.service_changed(key, body.metadata)


async def owned_changed(body: kopf.Body, event: kopf.RawEvent, memo: Operation, **_: Any) -> None:
    """Note a child or pod that changed or is gone, and queue its service."""
    key, before = _owner_key(body), ""
    if event["type"] == _DELETED or not key:
        before = memo.index.drop_owned(body.metadata["uid"])
    else:
        memo.index.put_owned(key, dict(body))
    for one in {key, before} - {""}:
        memo.owned_changed(one)


for _kind in (*_CHILDREN, _PODS):
    kopf.on.event(*_kind, id="owned_changed")(owned_changed)


def _key(body: kopf.Body) -> str:
    return f"{body.metadata.namespace}/{body.metadata.name}"


def _owner_key(body: kopf.Body) -> str:
    """Return the service key from the label, even if there is no such service; else empty.

    The watch probe selects by the label too, and misses what is not kept.
    """
    name = body.metadata.labels.get(SERVICE_LABEL)
    return "" if name is None else f"{body.metadata.namespace}/{name}"


def _server_in_cluster(by_name: str) -> str:
    """Name the API server by the address that the kubelet gives each pod: it needs no DNS."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        return by_name
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
