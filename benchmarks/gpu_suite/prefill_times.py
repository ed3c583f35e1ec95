"""Prefill attention by torch's SDPA beside our kernel: where it is there, and right."""

from collections.abc import Callable, Iterator
from functools import partial

import kernel_cases as cases
from gpu_suite import names
from gpu_suite.machine import Machine
from gpu_suite.parts import tried
from gpu_suite.record import Absent, Broken, Found
from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PrefillAttention,
    PromptChunk,
    ScoreRules,
    our_prefill,
)
from paceline_engine.attention.prefill.sdpa import sdpa_prefill
from paceline_engine.attention.prefill.trial import fault_of
from paceline_engine.attention.prefill.trial_steps import TrialCache, ragged_steps

PROMPTS = {"2k": (2048, 2048), "8k": (8192, 8192), "2k of 8k": (2048, 8192)}
"""Tokens, and those with what lies before them."""
_TRIAL_BLOCKS = 64

Timed = Callable[[str, Callable[[cases.Layer], cases.Case]], Iterator[Found]]
"""Checks a case against float64, and times it under a name."""


def chunk_of(label: str, machine: Machine) -> PromptChunk:
    """Return what one of `PROMPTS` computes; in a dry run a chunk of its kind."""
    tokens, context = PROMPTS[label]
    return (
        PromptChunk(20, 20 * context // tokens) if machine.is_dry else PromptChunk(tokens, context)
    )


def by_sdpa(
    model: str,
    layer: cases.Layer,
    machine: Machine,
    timed: Timed,
    sdpa: PrefillAttention = sdpa_prefill,
) -> Iterator[Found]:
    """Give SDPA's figures for whole prompts and later chunks.

    It is no fault of ours where torch has none or is wrong: the engine would leave it out as well.
    """
    full = {label: names.prefill_by_sdpa(label, model) for label in PROMPTS}
    labels = [label for label in PROMPTS if full[label] not in machine.passed]
    if not labels:
        return
    is_absent = False
    for found in _no_fault(full[labels[0]], partial(_trial, full[labels[0]], layer, sdpa), machine):
        is_absent = True
        yield found
    if is_absent:
        return
    for label in labels:
        case = partial(cases.sdpa_prefill_case, attend=sdpa, chunk=chunk_of(label, machine))
        yield from _no_fault(full[label], partial(timed, full[label], case), machine)


def _no_fault(
    name: str, measure: Callable[[], Iterator[Found]], machine: Machine
) -> Iterator[Found]:
    for found in tried(name, measure, machine):
        yield Absent(found.name, found.why) if isinstance(found, Broken) else found


def _trial(name: str, layer: cases.Layer, sdpa: PrefillAttention) -> Iterator[Found]:
    """Say why SDPA is left out, where it does not agree with our kernel."""
    cache = LayerCache(*layer.caches(_TRIAL_BLOCKS), None)
    rules = ScoreRules(layer.model.head_size**-0.5)
    steps = ragged_steps(TrialCache(cache, layer.model.num_q_heads))
    if (fault := fault_of(sdpa, our_prefill, steps, rules)) is not None:
        yield Absent(name, fault.reason)
