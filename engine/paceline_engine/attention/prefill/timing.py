"""What a step's attention takes with each back end, and which of them is worth its while."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from statistics import median

import torch

from paceline_engine.attention.prefill.attention import Chunk, PrefillAttention, Scores
from paceline_engine.attention.prefill.scratch import Scratch, Step

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
"""Of chunks that are measured: classes, each up to the next."""
STEP_TOKENS = 2048
"""In a measured step: shorter chunks come together, as they do in a step."""
CONTEXT_BEFORE = 2048
"""Tokens before each chunk of a later one's class: a long system prompt, or a chunk before."""
WORTH_IT = 0.95
"""Of our own kernel's time at most: less gain is noise."""
_REPEATS = 5
_UNSEEN_STEPS = 3
_UNSEEN = 8
"""Lengths in a step: each may take a compiler's time, while the engine starts."""

Run = Callable[[], object]
SecondsOf = Callable[[Iterable[Run]], float]
"""Median time of some calls."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Of one kind of layer."""

    first_s: float
    """Of the first in a step: what is worked out of its prompts or lengths is worked out here."""
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


def unseen(chunks: tuple[Chunk, ...]) -> Iterator[tuple[Chunk, ...]]:
    """Give steps like this one, of lengths that no class has: as a step's lengths mostly are.

    Up to `_UNSEEN` of its chunks differ from one another; a step of one chunk comes in several.
    """
    for turn in range(_UNSEEN_STEPS if len(chunks) == 1 else 1):
        yield tuple(
            Chunk(chunk.tokens - by, chunk.context - by)
            for place, chunk in enumerate(chunks)
            for by in (1 + turn + place % _UNSEEN,)
        )


def times_of(
    back_end: PrefillAttention,
    chunks: tuple[Chunk, ...],
    scratch: Scratch,
    layers: Iterable[Scores],
    seconds_of: SecondsOf,
) -> Times:
    """Measure it on each kind of layer that it serves.

    The first layer's time is that of steps it has not seen, neither their prompts nor their
    lengths: some plan for the one, and some compile for the other.
    """
    step = scratch.step(chunks)

    def call(step: Step, layer: Scores) -> object:
        return back_end(step.q, step.cache, step.prompts, layer)

    def again(layer: Scores) -> Iterator[Run]:
        call(step, layer)  # compiles what there is to compile, and plans
        return repeat(partial(call, step, layer), _REPEATS)

    def first(layer: Scores) -> Iterator[Run]:
        return (partial(call, scratch.step(lengths), layer) for lengths in unseen(chunks))

    served = [layer for layer in layers if back_end.serves_layer(step.cache, layer)]
    again_s = {layer: seconds_of(again(layer)) for layer in served}
    return {layer: LayerTimes(seconds_of(first(layer)), again_s[layer]) for layer in served}


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


def on_device(runs: Iterable[Run]) -> float:
    """Median time of calls on the GPU.

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
