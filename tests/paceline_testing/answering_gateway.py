"""The gateway of examples/gateway in a cluster, once it leads to a service that answers."""

import json

import httpx

from local_cluster.cluster import Cluster
from paceline_testing.rolled_service import WITHIN_S
from paceline_testing.waiting import wait_until


def answering_gateway(cluster: Cluster) -> str:
    """Wait for it and return its base URL."""
    cluster.kubectl("wait", "--for=condition=Programmed", "gateway/models", "--timeout=300s")
    gateway = json.loads(cluster.kubectl("get", "gateway", "models", "-ojson"))
    (address,) = gateway["status"]["addresses"]
    url = f"http://{address['value']}:8080"
    wait_until(lambda: _answers(url), within_s=WITHIN_S, every_s=0.5)
    return url


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/models", timeout=5).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
