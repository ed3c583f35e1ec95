"""Measures steps of many sizes before the first request, within a time that was given.

Each step is run as a request's would be: through the port that serves, over blocks that nobody
owns yet, by requests that nobody sent. Scheduler, prefix cache, statistics and pacer see none of
it. Sizes are tried upwards until the next would take too long; then all are repeated, one after the
other, so that a slow moment of a shared machine meets each of them once and is outvoted.
"""

from collections.abc import Callable, Sequence

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.flight import Runner
from paceline_engine.core.request import Request
from paceline_engine.pacing.cost_points import CostPoint, cost_points
from paceline_engine.pacing.cost_table import CostTable, cost_table
from paceline_wire import Sampling
from paceline_wire.limits import Capacity

_REPEATS = 3

Milliseconds = Callable[[CostPoint], float]


class StepTimer:
    """Times single steps of one engine that has no requests."""

    def __init__(
        self,
        runner: Runner,
        capacity: Capacity,
        clock: Callable[[], float],
        *,
        overlap: bool,
    ) -> None:
        """With `overlap` a step is timed behind another, as it will run beside the host."""
        self._runner = runner
        self._capacity = capacity
        self._clock = clock
        self._overlap = overlap

    def ms(self, point: CostPoint) -> float:
        """Run such a step; the time it took, in milliseconds.

        Behind another it takes what the device took from one's end to the other's, or, if that is
        longer, the host to launch it meanwhile.
        """
        batch = scratch_batch(point, self._capacity.block_size)
        ahead = self._runner.launch(batch) if self._overlap else None
        started = self._clock()
        flight = self._runner.launch(batch)
        launching_s = 0.0
        if ahead is not None:
            launching_s = self._clock() - started
            ahead.result()
            started = self._clock()
        flight.result()
        return max(launching_s, self._clock() - started) * 1e3


def profile(
    timer: StepTimer,
    capacity: Capacity,
    expected_ms: Milliseconds,
    *,
    budget_s: float,
    clock: Callable[[], float],
) -> CostTable:
    """Measure what fits into `budget_s` seconds; `expected_ms` need only be right in its form."""
    started = clock()

    def left_ms() -> float:
        return (started + budget_s - clock()) * 1e3

    measured: dict[CostPoint, list[float]] = {}
    least_ms: list[float] = []
    scale = 1.0
    for point in cost_points(capacity, expected_ms):
        if not is_affordable([expected_ms(point) * scale, *least_ms], left_ms()):
            break
        first_ms = timer.ms(point)  # algorithms are chosen, code compiled, memory taken
        measured[point] = [took_ms] = [timer.ms(point)]
        # Of the two the one that nothing held up: a stall must not make the next look too dear.
        least_ms.append(min(first_ms, took_ms))
        scale = least_ms[-1] / expected_ms(point)
    for _ in range(_REPEATS - 1):
        for point, times in measured.items():
            if left_ms() <= times[0]:
                break
            times.append(timer.ms(point))
    return cost_table(measured, clock() - started)


def is_affordable(foreseen_ms: Sequence[float], left_ms: float) -> bool:
    """Tell whether the first size, not tried yet, can be measured and all of them repeated."""
    first, *others = foreseen_ms
    return first * (1 + _REPEATS) + sum(others) * (_REPEATS - 1) <= left_ms


def scratch_batch(point: CostPoint, block_size: int) -> Batch:
    """Make a step of such a size, in the first blocks of the pool, by requests that nobody sent."""
    scratch = _Scratch(block_size)
    decodes = [
        ScheduledChunk(
            scratch.request(point.context_each),
            point.context_each - 1,
            1,
            samples=True,
            is_decode=True,
        )
        for _ in range(point.decode)
    ]
    before = point.prefill_context
    prompts = [
        ScheduledChunk(
            scratch.request(before + chunk), before, chunk, samples=True, is_decode=False
        )
        for chunk in point.chunks
    ]
    return Batch((*decodes, *prompts), num_decodes=point.decode)


class _Scratch:
    """Hands out rows and blocks, each once."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._rows = 0
        self._blocks = 0

    def request(self, num_tokens: int) -> Request:
        """A request whose tokens are all known."""
        first, self._blocks = self._blocks, self._blocks + -(-num_tokens // self._block_size)
        row, self._rows = self._rows, self._rows + 1
        return Request(
            id=f"profile {row}",
            token_ids=[0] * num_tokens,
            num_prompt_tokens=num_tokens,
            sampling=Sampling(max_tokens=1, temperature=1.0),
            row=row,
            block_ids=list(range(first, self._blocks)),
        )
