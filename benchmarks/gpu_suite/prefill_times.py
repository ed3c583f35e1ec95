"""Prefill attention by others than our kernel: those that are installed, and right, beside it."""

from collections.abc import Callable, Iterator
from functools import partial

import kernel_cases as cases
from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.parts import tried
from gpu_suite.record import Absent, Broken, Found
from paceline_engine.attention.prefill.attention import (
    Cache,
    Chunk,
    PagedPrefill,
    PrefillAttention,
    RefusedError,
    Scores,
)
from paceline_engine.attention.prefill.offers import Offers
from paceline_engine.attention.prefill.scratch import Scratch
from paceline_engine.attention.prefill.trial import fault_of, trial_steps

PROMPTS = {"2k": (2048, 2048), "8k": (8192, 8192), "2k of 8k": (2048, 8192)}
"""Tokens, and those with what lies before them."""
_TRIAL_BLOCKS = 64

Timed = Callable[[str, Callable[[cases.Layer], cases.Case]], Iterator[Found]]
"""Checks a case against float64, and times it under a name."""


def chunk_of(label: str, machine: Machine) -> Chunk:
    """What one of `PROMPTS` computes; in a dry run a chunk of its kind."""
    tokens, context = PROMPTS[label]
    return Chunk(20, 20 * context // tokens) if machine.is_dry else Chunk(tokens, context)


def by_others(
    model: str, layer: cases.Layer, machine: Machine, offers: Offers, timed: Timed
) -> Iterator[Found]:
    """Give each one's figures; none is at fault for what it has not got, or for being wrong.

    The engine would leave such a one out as well.
    """
    for name, offer in offers.items():
        full = {label: names.prefill_by(name, label, model) for label in PROMPTS}
        labels = [label for label in PROMPTS if full[label] not in machine.passed]
        if not labels:
            continue
        first = full[labels[0]]
        made: list[PrefillAttention] = []
        for found in tried(first, partial(_made, first, offer, layer, made), machine):
            yield Absent(found.name, found.why) if isinstance(found, Broken) else found
        for back_end in made:
            for label in labels:
                chunk = chunk_of(label, machine)
                if not back_end.serves((chunk,)):
                    continue
                case = partial(cases.other_prefill_case, back_end=back_end, chunk=chunk)
                for found in tried(full[label], partial(timed, full[label], case), machine):
                    yield Absent(found.name, found.why) if isinstance(found, Broken) else found


def _made(
    name: str,
    offer: Callable[[], PrefillAttention],
    layer: cases.Layer,
    made: list[PrefillAttention],
) -> Iterator[Absent]:
    """Put a back end into `made` if it is here, serves the layer, and agrees with our kernel."""
    try:
        back_end = offer()
    except RefusedError as refusal:
        yield Absent(name, str(refusal))
        return
    cache, scores = Cache(*layer.caches(_TRIAL_BLOCKS), None), Scores(layer.model.head_size**-0.5)
    if not back_end.serves_layer(cache, scores):
        yield Absent(name, f"it needs {back_end.needs}")
        return
    steps = trial_steps(Scratch(cache, layer.model.num_q_heads), back_end, [])
    fault = fault_of(back_end, PagedPrefill(), steps, scores)
    if fault is None:
        made.append(back_end)
    else:
        yield Absent(name, fault.reason)
