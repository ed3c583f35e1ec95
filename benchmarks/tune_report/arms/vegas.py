"""Vegas, as Netflix/concurrency-limits has it: the batch size by how many requests seem to queue.

    queue = limit * (1 - least / now)        of milliseconds per token, which lengths do not move

With l = log10(limit), at least 1: up by 6l where the queue is at most l, up by l below 3l, down by
l above 6l or where a request was dropped, else unchanged. The least time is measured anew after
each 22.5 * limit requests, the mean of the rule's chance between 15 and 30.
"""

import math

from paceline_tuner.service_spec import SLA
from tune_report.arms.reading import Reading

_ALPHA, _BETA = 3, 6
_PROBED_AFTER = 22.5
_DROPS = ("shed", "timeout", "refused", "failed")


class Vegas:
    """The batch size alone; the token budget stays."""

    def __init__(self) -> None:
        """Start with no history."""
        self._limit = 0.0
        self._least_ms = math.inf
        self._seen = 0

    def limits(self, reading: Reading, sla: SLA) -> tuple[int, int]:  # noqa: ARG002 - it knows no SLA
        """Estimate the queue, and move by logarithms of the limit."""
        self._limit = self._limit or float(reading.batch)
        times = [r.tpot_ms for r in reading.newest if r.tpot_ms is not None]
        if times:
            self._follow(reading, sum(times) / len(times))
        return int(self._limit), reading.budget

    def _follow(self, reading: Reading, now_ms: float) -> None:
        self._seen += len(reading.newest)
        is_probe = self._seen >= _PROBED_AFTER * self._limit
        if is_probe or now_ms < self._least_ms:
            self._least_ms = now_ms
            self._seen = 0 if is_probe else self._seen
            return
        change = self._change(reading, now_ms)
        self._limit = max(1.0, min(self._limit + change, float(reading.max_batch)))

    def _change(self, reading: Reading, now_ms: float) -> int:
        unit = max(1, int(math.log10(self._limit)))
        if any(record.outcome in _DROPS for record in reading.newest):
            return -unit
        if 2 * reading.running < self._limit:
            return 0
        queue = math.ceil(self._limit * (1 - self._least_ms / now_ms))
        if queue <= unit:
            return _BETA * unit
        if queue < _ALPHA * unit:
            return unit
        return -unit if queue > _BETA * unit else 0
