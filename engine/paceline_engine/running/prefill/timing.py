"""What a step's attention takes with each back end, and which of them is worth its while."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

import torch

from paceline_engine.running.prefill.attention import Chunk, PrefillAttention, Scores
from paceline_engine.running.prefill.scratch import Step

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Of chunks that are measured: classes, each up to the next."""
STEP_TOKENS = 2048
"""In a measured step: shorter chunks come together, as they do in a step."""
CONTEXT_BEFORE = 2048
"""Tokens before each chunk of a later one's class: a long system prompt, or a chunk before."""
WORTH_IT = 0.95
"""Of our own kernel's time at most: less gain is noise."""
_REPEATS = 5

SecondsOf = Callable[[Callable[[], object]], float]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Of one kind of layer."""

    first_s: float
    """Of the first in a step: what is worked out of its prompts is worked out here."""
    again_s: float
    """Of each one after it."""

    def step_s(self, num_layers: int) -> float:
        """Of all layers of this kind in a step."""
        return self.first_s + (num_layers - 1) * self.again_s


Times = Mapping[Scores, LayerTimes]
"""Of the layers that a back end serves."""


def classes(most: int, *, is_whole: bool) -> Iterator[tuple[int, tuple[Chunk, ...]]]:
    """Give each length up to `most` tokens of a step, and the chunks by which it is measured."""
    before = 0 if is_whole else min(CONTEXT_BEFORE, most)
    for length in (length for length in LENGTHS if length <= most):
        count = max(1, min(STEP_TOKENS, most) // length)
        yield length, (Chunk(length, length + before),) * count


def times_of(
    back_end: PrefillAttention, step: Step, layers: Mapping[Scores, int], seconds_of: SecondsOf
) -> Times:
    """Measure it on each kind of layer that it serves."""

    def first(layer: Scores) -> object:
        return back_end(step.q, step.cache, replace(step.prompts), layer)

    def again(layer: Scores) -> object:
        return back_end(step.q, step.cache, step.prompts, layer)

    return {
        layer: LayerTimes(seconds_of(lambda: first(layer)), seconds_of(lambda: again(layer)))  # noqa: B023 - called at once
        for layer in layers
        if back_end.serves_layer(step.cache, layer)
    }


def fastest(
    ours: Times, others: Mapping[str, Times], num_layers: Mapping[Scores, int]
) -> str | None:
    """Choose the one that saves most, if it is worth it over the layers that it serves.

    None: our own, which serves whatever another does not.
    """

    def step_s(times: Times) -> float:
        return sum(one.step_s(num_layers[layer]) for layer, one in times.items())

    instead = {name: step_s({s: ours[s] for s in times}) for name, times in others.items()}
    theirs = {name: step_s(times) for name, times in others.items()}
    worth_it = [name for name in others if theirs[name] <= WORTH_IT * instead[name]]
    return max(worth_it, key=lambda name: instead[name] - theirs[name], default=None)


def on_device(run: Callable[[], object]) -> float:
    """Median time of a call on the GPU, behind one that compiles and warms up.

    It begins with an idle GPU: what the host takes before the first kernel is counted.
    """
    run()
    times_ms: list[float] = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times_ms.append(start.elapsed_time(end))
    return median(times_ms) / 1e3
