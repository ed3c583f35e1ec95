"""The collector: builds every metric from state when somebody scrapes, and never before."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from paceline_sidecar.metrics.paceline_family import key_family, paceline_family
from paceline_sidecar.metrics.snapshot import snapshot
from paceline_sidecar.metrics.vllm_family import vllm_family
from paceline_sidecar.service import Service


class ServiceCollector(Collector):
    """Reads one service."""

    def __init__(self, service: Service, *, vllm: bool, by_key: bool) -> None:
        self._service = service
        self._vllm = vllm
        self._by_key = by_key

    def collect(self) -> Iterator[Family]:
        """One scrape."""
        seen = snapshot(self._service)
        yield from paceline_family(seen)
        if self._vllm:
            yield from vllm_family(seen)
        if self._by_key:
            yield from key_family(seen)


def registry_of(service: Service, *, vllm: bool, by_key: bool) -> CollectorRegistry:
    """A registry that holds nothing but the service; `by_key` names those who call."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServiceCollector(service, vllm=vllm, by_key=by_key))
    return registry
