"""How kopf's watches log in: as the pod's service account, or with the kubeconfig."""

import dataclasses
import os
from typing import Any

import kopf


@kopf.on.login()
async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Prefer the service account; a laptop has none."""
    account = kopf.login_with_service_account(**kwargs)
    if account is None:
        return kopf.login_with_kubeconfig(**kwargs)
    return dataclasses.replace(account, server=_server_in_cluster(account.server))


def _server_in_cluster(by_name: str) -> str:
    """The API server by the address that the kubelet gives each pod: it needs no DNS."""
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    if not host or not port:
        return by_name
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
