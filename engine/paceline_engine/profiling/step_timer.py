"""Times single steps of an engine that has no requests yet.

Each step runs as a request's would: through the launcher that serves, over blocks that are all
free still, with invented requests. Scheduler, prefix cache, statistics and pacer see none of it.
"""

from collections.abc import Callable

from paceline_engine.core.batch import Batch, Runner, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.profiling.probe_steps import ProbeStep
from paceline_wire import Sampling
from paceline_wire.limits import Capacity


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
        """With `overlap` a step is timed behind another, as steps run while serving."""
        self._runner = runner
        self._capacity = capacity
        self._clock = clock
        self._overlap = overlap

    def ms(self, step: ProbeStep) -> float:
        """Run such a step and return the milliseconds that it took.

        With overlap that is the device's time from the end of the step before to the end of this
        one, or the host's time to launch it, whichever is longer.
        """
        batch = scratch_batch(step, self._capacity.block_size)
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


def scratch_batch(step: ProbeStep, block_size: int) -> Batch:
    """Make the batch of such a step: invented requests in the first blocks of the pool."""
    scratch = _Scratch(block_size)
    decodes = [
        ScheduledChunk(
            scratch.request(step.context_each),
            step.context_each - 1,
            1,
            samples=True,
            is_decode=True,
        )
        for _ in range(step.decode)
    ]
    before = step.prefill_context
    prompts = [
        ScheduledChunk(
            scratch.request(before + chunk), before, chunk, samples=True, is_decode=False
        )
        for chunk in step.chunks
    ]
    return Batch((*decodes, *prompts), num_decodes=step.decode)


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
