"""Audit: counts of misses under one set of limits, and when they certify it (loop L3)."""

from dataclasses import dataclass, replace

from paceline_tuner.attainment import Counts, is_certain, is_late
from paceline_tuner.records import after
from paceline_tuner.service_spec import SLA
from paceline_tuner.telemetry import RequestRecord
from paceline_tuner.window import Evidence

_BLOCK = 100
_DEFAULT_DISPERSION = 8.0
_MIN_BLOCKS = 5
_MAX_BLOCKS = 50
_PROVEN_REQUESTS = 20


@dataclass(frozen=True, slots=True)
class Audit:
    """Requests that arrived and ended under the present limits."""

    since: float
    """The pod's clock: when the limits took hold."""
    last_seq: int = 0
    requests: int = 0
    misses: int = 0
    blocks: tuple[int, ...] = ()
    """Misses of each hundred requests."""
    open_block: tuple[int, int] = (0, 0)
    """Requests and misses of the hundred that is being filled."""

    @property
    def dispersion(self) -> float:
        """How much more misses bunch than by chance."""
        if len(self.blocks) < _MIN_BLOCKS:
            return _DEFAULT_DISPERSION
        mean = sum(self.blocks) / len(self.blocks)
        if mean == 0:
            return 1.0
        squares = sum((misses - mean) ** 2 for misses in self.blocks)
        return max(1.0, squares / (len(self.blocks) - 1) / mean)

    def is_certified(self, objective: float) -> bool:
        """Misses are surely rarer than the objective allows, bunching considered."""
        return is_certain(self.requests / self.dispersion, self.misses / self.dispersion, objective)

    def add(self, sla: SLA, evidence: Evidence) -> "Audit":
        """Count what ended since the last decision."""
        ended = after(evidence.requests, self.last_seq)
        new = [record for record in ended if record.arrived_at >= self.since]
        if not new:
            return self
        blocks = list(self.blocks)
        size, open_misses = self.open_block
        misses = 0
        for record in new:
            left, is_miss = record.weight, is_missed(sla, record)
            misses += left * is_miss
            while left:  # one that stands for many may fill several blocks
                part = min(left, _BLOCK - size)
                left, size, open_misses = left - part, size + part, open_misses + part * is_miss
                if size == _BLOCK:
                    blocks.append(open_misses)
                    size = open_misses = 0
        return replace(
            self,
            last_seq=new[-1].seq,
            requests=self.requests + sum(record.weight for record in new),
            misses=self.misses + misses,
            blocks=tuple(blocks[-_MAX_BLOCKS:]),
            open_block=(size, open_misses),
        )


def is_missed(sla: SLA, record: RequestRecord) -> bool:
    """The request missed its targets, as far as its record tells."""
    # The record holds only its longest gap: over the target, it may be a miss.
    is_stalled = sla.itl_p99_ms is not None and (record.itl_max_ms or 0.0) > 2 * sla.itl_p99_ms
    return is_late(sla, record) or is_stalled or record.outcome not in {"ok", "cancelled"}


def is_proven(counts: Counts, objective: float, *, held_s: float, window_s: float) -> bool:
    """The limits kept the SLA for a whole window: good enough to return to after a lost lease."""
    attainment = counts.attainment
    return (
        held_s >= window_s
        and counts.requests >= _PROVEN_REQUESTS
        and attainment is not None
        and attainment >= objective
    )
