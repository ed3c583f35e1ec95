"""SampleStore: clean steps to fit from, the newest few of each kind.

A loop that has settled runs the same step over and over; a plain ring would then forget every
other size, and the coefficients would drift along the direction that nothing excites.
"""

import math
from collections import deque

from paceline_wire import MeasuredStep

_PER_BUCKET = 24
_CONTEXT_PER_BUCKET = 25_000
_HOLDOUT = 10  # one of ten, the newest


class SampleStore:
    """Buckets by size, context and whether prefill ran."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        """Hold nothing."""
        self._buckets: dict[tuple[int, int, bool], deque[MeasuredStep]] = {}

    def add(self, sample: MeasuredStep) -> None:
        """Keep the sample, and drop the oldest of its bucket."""
        key = (
            math.floor(2 * math.log2(sample.tokens)),
            sample.context // _CONTEXT_PER_BUCKET,
            sample.prefill > 0,
        )
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = deque(maxlen=_PER_BUCKET)
        bucket.append(sample)

    def split(self) -> tuple[list[MeasuredStep], list[MeasuredStep]]:
        """Samples to fit from, and the newest tenth of each bucket to judge by."""
        training: list[MeasuredStep] = []
        holdout: list[MeasuredStep] = []
        for bucket in self._buckets.values():
            samples = list(bucket)
            kept = len(samples) - len(samples) // _HOLDOUT
            training += samples[:kept]
            holdout += samples[kept:]
        return training, holdout

    def clear(self) -> None:
        """Forget everything: the engine's steps have changed."""
        self._buckets.clear()
