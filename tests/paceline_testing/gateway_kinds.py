"""The definitions of what the operator writes for gateways, from the modules that bring them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from local_cluster.cluster import Cluster
from local_cluster.go_binaries import module_folder

_ENVOY_GATEWAY: Final = (
    "github.com/envoyproxy/gateway",
    "v1.9.1",
    "h1:vAVp6/AlBXJ1aOhp1mxL7fNEzVEfjADUguUhm2wzxQY=",
)
_INFERENCE_EXTENSION: Final = (
    "sigs.k8s.io/gateway-api-inference-extension",
    "v1.6.0",
    "h1:cjtwMJYcTnLXBYE5ffR1/hHhn7U1aIFfe2RITYmOXVA=",
)
_POLICIES: Final = "gateway.envoyproxy.io_backendtrafficpolicies.yaml"
_POOLS: Final = "inference.networking.k8s.io_inferencepools.yaml"


@contextmanager
def kinds_of_gateways(cluster: Cluster) -> Iterator[None]:
    """BackendTrafficPolicy and InferencePool, as Envoy Gateway and the extension define them."""
    paths = _definitions()
    for path in paths:
        # An apply by the client would note the whole of it in an annotation, which is too long.
        cluster.kubectl("apply", "--server-side", "-f", str(path))
    for path in paths:
        cluster.kubectl("wait", "--for=condition=Established", "-f", str(path), "--timeout=60s")
    try:
        yield
    finally:
        for path in paths:
            cluster.kubectl("delete", "-f", str(path), "--timeout=60s")


def _definitions() -> list[Path]:
    gateway, extension = module_folder(*_ENVOY_GATEWAY), module_folder(*_INFERENCE_EXTENSION)
    return [
        gateway / "charts/gateway-helm/charts/crds/crds/generated" / _POLICIES,
        extension / "config/crd/bases" / _POOLS,
    ]
