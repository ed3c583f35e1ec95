"""Times steps of prompts beside decodes as they will run, on an engine that has no requests."""

from paceline_engine.profiling.probe_steps import ProbeStep
from paceline_engine.profiling.step_timer import StepTimer
from paceline_wire.limits import Capacity

_MOST_DECODES = 32
_CONTEXT = 512  # tokens of each decode
_STEPS = 4  # timed of a size, each round


class MixedProbe:
    """Times some steps that are alike, by the timer of the start's profile."""

    def __init__(self, timer: StepTimer, capacity: Capacity) -> None:
        self._timer = timer
        self._capacity = capacity

    def seconds_of(self, num_tokens: int) -> tuple[float, ...] | None:
        """Return what each of some steps of so many tokens took; None where none can be run."""
        point = mixed_step(num_tokens, self._capacity)
        return None if point is None else self.seconds_at(point)

    def seconds_at(self, point: ProbeStep) -> tuple[float, ...]:
        """Return what each of some steps took."""
        return tuple(self._timer.ms(point) / 1e3 for _ in range(_STEPS))


def mixed_step(num_tokens: int, capacity: Capacity) -> ProbeStep | None:
    """Make a step of so many tokens, about half of them decodes, at most 32; None where none fits.

    Decodes see 512 tokens, or what the longest sequence and the blocks allow.
    """
    longest = capacity.max_model_len - 1  # the token that follows needs a place
    decodes = min(num_tokens // 2, _MOST_DECODES, capacity.max_batch_size - 1)
    prefill = num_tokens - decodes
    if longest < 1 or num_tokens > capacity.max_token_budget:
        return None
    room = capacity.num_blocks - _blocks(prefill, longest, capacity.block_size)
    context = min(_CONTEXT, longest, room // max(decodes, 1) * capacity.block_size)
    point = ProbeStep(decodes, context, prefill, prompt_tokens=min(prefill, longest))
    has_rows = decodes + len(point.chunks) <= capacity.max_batch_size
    return point if room >= 0 and context >= bool(decodes) and has_rows else None


def _blocks(prefill: int, longest: int, block_size: int) -> int:
    point = ProbeStep(0, 0, prefill, prompt_tokens=min(prefill, longest))
    return point.num_blocks(block_size)
