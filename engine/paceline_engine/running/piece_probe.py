"""Times steps of prompts beside decodes as they will run, on an engine that has no requests."""

from collections.abc import Callable
from itertools import pairwise

from paceline_engine.limits import Capacity
from paceline_engine.pacing.cost_points import CostPoint
from paceline_engine.runner import Launcher
from paceline_engine.running.profile import scratch_batch
from paceline_engine.scheduling.batch import Batch

_MOST_DECODES = 32
_CONTEXT = 512  # tokens of each decode
_STEPS = 4
"""In a row: the first of them fills the pipe."""


class PieceProbe:
    """Runs short chains of steps that are alike, each behind the one before where they overlap."""

    def __init__(
        self,
        launcher: Launcher,
        capacity: Capacity,
        clock: Callable[[], float],
        *,
        overlap: bool,
    ) -> None:
        self._launcher = launcher
        self._capacity = capacity
        self._clock = clock
        self._overlap = overlap

    def seconds_of(self, num_tokens: int) -> tuple[float, ...] | None:
        """What each of some steps of so many tokens took; None where the engine holds none."""
        point = mixed_step(num_tokens, self._capacity)
        return None if point is None else self.seconds_at(point)

    def seconds_at(self, point: CostPoint) -> tuple[float, ...]:
        """What each of some steps took."""
        batch = scratch_batch(point, self._capacity.block_size)
        marks = self._overlapped(batch) if self._overlap else self._one_by_one(batch)
        return tuple(after - before for before, after in pairwise(marks))

    def _one_by_one(self, batch: Batch) -> list[float]:
        marks = [self._clock()]
        for _ in range(_STEPS):
            self._launcher.launch(batch).tokens()
            marks.append(self._clock())
        return marks

    def _overlapped(self, batch: Batch) -> list[float]:
        """From one step's tokens to the next one's, which was launched before they came."""
        ahead = self._launcher.launch(batch)
        marks = []
        for _ in range(_STEPS):
            following = self._launcher.launch(batch)
            ahead.tokens()
            marks.append(self._clock())
            ahead = following
        ahead.tokens()
        return marks


def mixed_step(num_tokens: int, capacity: Capacity) -> CostPoint | None:
    """A step of so many tokens, about half of them decodes and at most 32; None: none fits. Pure.

    Decodes see 512 tokens, or what the longest sequence and the blocks allow.
    """
    longest = capacity.max_model_len - 1  # the token that follows needs a place
    decodes = min(num_tokens // 2, _MOST_DECODES, capacity.max_batch_size - 1)
    prefill = num_tokens - decodes
    if longest < 1 or num_tokens > capacity.max_token_budget:
        return None
    room = capacity.num_blocks - _blocks(prefill, longest, capacity.block_size)
    context = min(_CONTEXT, longest, room // max(decodes, 1) * capacity.block_size)
    point = CostPoint(decodes, context, prefill, prompt_tokens=min(prefill, longest))
    has_rows = decodes + len(point.chunks) <= capacity.max_batch_size
    return point if room >= 0 and context >= bool(decodes) and has_rows else None


def _blocks(prefill: int, longest: int, block_size: int) -> int:
    point = CostPoint(0, 0, prefill, prompt_tokens=min(prefill, longest))
    return point.num_blocks(block_size)
