"""The collector: builds every metric from a snapshot, in a thread, when somebody scrapes."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from paceline_sidecar.metrics.paceline_family import key_family, paceline_family
from paceline_sidecar.metrics.snapshot import Snapshot
from paceline_sidecar.metrics.vllm_family import vllm_family

# A thread that computes keeps the interpreter for 5 ms at a time, in which no token is sent. After
# each family, which takes a tenth of a millisecond, it lets go by itself.
_BREATH_S = 0.0002


@dataclass(frozen=True, slots=True)
class Exposition:
    """What a port shows of a snapshot."""

    vllm: bool
    by_key: bool
    """Whether those who call are named."""

    def write(
        self, seen: Snapshot, accept: str, *, breath_s: float = _BREATH_S
    ) -> tuple[bytes, str]:
        """Return a scrape as text or OpenMetrics, as is asked for, and its type; for a thread."""
        encode, content_type = choose_encoder(accept)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_SnapshotCollector(self, seen, breath_s))
        return encode(registry), content_type

    def families(self, seen: Snapshot) -> Iterator[Family]:
        """Build one family after the other."""
        yield from paceline_family(seen)
        if self.vllm:
            yield from vllm_family(seen)
        if self.by_key:
            yield from key_family(seen)


class _SnapshotCollector(Collector):
    def __init__(self, exposition: Exposition, seen: Snapshot, breath_s: float) -> None:
        self._exposition = exposition
        self._seen = seen
        self._breath_s = breath_s

    def collect(self) -> Iterator[Family]:
        for family in self._exposition.families(self._seen):
            yield family
            time.sleep(self._breath_s)
