"""Audit: counts of misses under one set of limits, and when they certify it (loop L3)."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_tuner.attainment import Counts, are_late, is_certain, is_late
from paceline_tuner.records import Mask, after, column
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
        is_new = column(ended, "arrived_at") >= self.since
        if not is_new.any():
            return self
        weights = [int(weight) for weight in column(ended, "weight")[is_new].tolist()]
        are_missed = _are_missed(sla, ended)[is_new].tolist()
        blocks = list(self.blocks)
        size, open_misses = self.open_block
        misses = 0
        for weight, is_miss in zip(weights, are_missed, strict=True):
            left = weight
            misses += left * is_miss
            while left:  # one that stands for many may fill several blocks
                part = min(left, _BLOCK - size)
                left, size, open_misses = left - part, size + part, open_misses + part * is_miss
                if size == _BLOCK:
                    blocks.append(open_misses)
                    size = open_misses = 0
        return Audit(
            self.since,
            last_seq=int(column(ended, "seq")[is_new][-1]),
            requests=self.requests + sum(weights),
            misses=self.misses + misses,
            blocks=tuple(blocks[-_MAX_BLOCKS:]),
            open_block=(size, open_misses),
        )


def is_missed(sla: SLA, record: RequestRecord) -> bool:
    """The request missed its targets, as far as its record tells."""
    # The record holds only its longest gap: over the target, it may be a miss.
    is_stalled = sla.itl_p99_ms is not None and (record.itl_max_ms or 0.0) > 2 * sla.itl_p99_ms
    return is_late(sla, record) or is_stalled or record.outcome not in {"ok", "cancelled"}


def _are_missed(sla: SLA, requests: Sequence[RequestRecord]) -> Mask:
    """Return `is_missed` for many requests at once."""
    missed: Mask = are_late(sla, requests) | (column(requests, "is_as_wanted") == 0)
    if sla.itl_p99_ms is not None:
        missed |= column(requests, "itl_max_ms") > 2 * sla.itl_p99_ms
    return missed


def is_proven(counts: Counts, objective: float, *, held_s: float, window_s: float) -> bool:
    """Whether the limits kept the SLA for a whole window, and so are safe after a lost lease."""
    attainment = counts.attainment
    return (
        held_s >= window_s
        and counts.requests >= _PROVEN_REQUESTS
        and attainment is not None
        and attainment >= objective
    )
