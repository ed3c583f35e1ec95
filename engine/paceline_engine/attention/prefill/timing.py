"""Times a step's prefill attention, and decides whether SDPA is fast enough to be used."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from statistics import median

import torch

from paceline_engine.attention.prefill.prompts import PrefillAttention, ScoreRules
from paceline_engine.attention.prefill.trial_steps import TimedStep, TrialCache, TrialStep

WORTH_IT = 0.95
"""SDPA serves where it takes at most this share of our time: a smaller gain is noise."""
_REPEATS = 5

Run = Callable[[], object]
SecondsOf = Callable[[Iterable[Run]], float]
"""Returns the median time of some calls."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """The time of attention in layers of one kind."""

    first_s: float
    """The first layer of a step: what depends on its lengths is worked out here."""
    again_s: float
    """Each layer after it."""

    def step_s(self, num_layers: int) -> float:
        """Add up all layers of this kind in a step."""
        return self.first_s + (num_layers - 1) * self.again_s


StepTimes = Mapping[ScoreRules, LayerTimes]
"""By the kinds of layers that SDPA serves."""


def times_of(
    attention: PrefillAttention,
    timed: TimedStep,
    cache: TrialCache,
    rules: ScoreRules,
    seconds_of: SecondsOf,
) -> LayerTimes:
    """Time a step.

    The first layer's time is that of sizes which it has not seen: torch may compile for each.
    """
    step = cache.step(timed.chunks)

    def call(step: TrialStep) -> object:
        return attention(step.q, step.cache, step.prompts, rules)

    def fresh() -> Iterator[Run]:
        return (partial(call, cache.step(others)) for others in timed.unseen)

    call(step)  # compiles what there is to compile
    again_s = seconds_of(repeat(partial(call, step), _REPEATS))
    return LayerTimes(seconds_of(fresh()), again_s)


def is_worth_it(ours: StepTimes, theirs: StepTimes, num_layers: Mapping[ScoreRules, int]) -> bool:
    """Compare a step's time over the layers that SDPA serves."""

    def step_s(times: StepTimes) -> float:
        return sum(one.step_s(num_layers[rules]) for rules, one in times.items())

    return step_s(theirs) <= WORTH_IT * step_s(ours)


def on_device(runs: Iterable[Run]) -> float:
    """Return the median time of calls on the GPU.

    Each begins with an idle GPU: what the host takes before the first kernel is counted.
    """
    times_ms: list[float] = []
    for run in runs:
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return median(times_ms) / 1e3
