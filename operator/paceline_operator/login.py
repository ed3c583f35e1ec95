"""How kopf's watches log in: as the pod's service account, or with the kubeconfig."""

from typing import Any

import kopf


@kopf.on.login()
async def login(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """Prefer the service account; a laptop has none."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)
