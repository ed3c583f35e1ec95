"""Which back end attends for a step's prompts: what was measured at start, or what was set."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

import torch

from paceline_engine.attention.prefill import timing
from paceline_engine.attention.prefill.attention import (
    Cache,
    Chunk,
    PagedPrefill,
    PrefillAttention,
    RefusedError,
    Scores,
)
from paceline_engine.attention.prefill.guarded import GuardedPrefill
from paceline_engine.attention.prefill.offers import Offer, Offers, offers
from paceline_engine.attention.prefill.scratch import Scratch, Step
from paceline_engine.attention.prefill.timing import SecondsOf
from paceline_engine.attention.prefill.trial import Fault, fault_of, trial_steps
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import BadSettings
from paceline_engine.settings import PrefillSetting

ByLength = Mapping[int, PrefillAttention]
"""By the shortest mean length of a step's chunks from which one serves."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """Other back ends for some lengths of chunks, ours for all else."""

    whole: ByLength = field(default_factory=dict)
    """Of steps whose prompts are all computed from their first token."""
    later: ByLength = field(default_factory=dict)
    """Of steps with a chunk behind a context: a cached prefix, or the prompt's first chunks."""
    ours: PrefillAttention = field(default_factory=PagedPrefill)

    def of_step(self, chunks: tuple[Chunk, ...]) -> PrefillAttention:
        """Choose by the mean length of the chunks, among those that can serve them."""
        if not chunks:
            return self.ours
        by_length = self.whole if all(chunk.is_whole for chunk in chunks) else self.later
        mean = sum(chunk.tokens for chunk in chunks) / len(chunks)
        least = max((length for length in by_length if length <= mean), default=None)
        found = self.ours if least is None else by_length[least]
        return found if found.serves(chunks) else self.ours


def choose(
    setting: PrefillSetting,
    config: ModelConfig,
    cache: Cache,
    max_tokens: int,
    *,
    others: Offers | None = None,
    ours: PrefillAttention | None = None,
    seconds_of: SecondsOf = timing.on_device,
) -> PrefillChoice:
    """Decide for a model's layers, on the device of its cache; measured where it is `auto`.

    `max_tokens` is the longest chunk of a step. The cache is not touched: what is tried and
    measured has one of its own, for as long as this runs. Raises BadSettings where one is set that
    is not installed, serves no layer, or is not right.
    """
    ours = ours or PagedPrefill()
    if setting == "triton":
        return PrefillChoice(ours=ours)
    others = offers(compiles=setting != "auto") if others is None else others
    layers = Counter(
        Scores(config.score_scale, window, config.attention_softcap) for window in config.windows
    )
    model = _Model(config, cache, layers, max_tokens)
    if setting != "auto":
        other = GuardedPrefill(_required(setting, others[setting], ours, model), ours)
        return PrefillChoice({0: other}, {0: other}, ours)
    right = _right(others, ours, model)
    return _measured(right, ours, model, seconds_of) if right else PrefillChoice(ours=ours)


@dataclass(frozen=True, slots=True)
class _Model:
    """What the back ends are to serve."""

    config: ModelConfig
    cache: Cache
    layers: Mapping[Scores, int]
    """Each kind of layer, and how many there are."""
    max_tokens: int

    def served(self, other: PrefillAttention) -> list[Scores]:
        return [layer for layer in self.layers if other.serves_layer(self.cache, layer)]

    def scratch(self) -> Scratch:
        return Scratch(self.cache, self.config.num_q_heads)

    def classes(
        self, scratch: Scratch, *, is_whole: bool
    ) -> Iterator[tuple[int, tuple[Chunk, ...]]]:
        return timing.classes(min(self.max_tokens, scratch.num_tokens), is_whole=is_whole)


def _required(name: str, offer: Offer, ours: PrefillAttention, model: _Model) -> PrefillAttention:
    try:
        other = offer()
    except RefusedError as refusal:
        raise BadSettings(
            f"PACELINE_ENGINE_PREFILL_ATTENTION is {name}, but {refusal}."
        ) from refusal
    if not model.served(other):
        raise BadSettings(
            f"PACELINE_ENGINE_PREFILL_ATTENTION is {name}, which serves none of the model's "
            f"layers: it needs {other.needs}."
        )
    if (fault := _fault(other, ours, model, model.scratch())) is not None:
        heads = f"{model.config.num_q_heads} heads of {model.config.head_size}"
        dtype = str(model.cache.keys.dtype).removeprefix("torch.")
        raise BadSettings(
            f"PACELINE_ENGINE_PREFILL_ATTENTION is {name}, but for {heads} over "
            f"{model.config.num_kv_heads} in {dtype} it is not right: {fault.reason}."
        )
    return other


def _right(others: Offers, ours: PrefillAttention, model: _Model) -> list[PrefillAttention]:
    """Of those that are installed and serve some layer: what one sentence each leaves out, is."""
    right: list[PrefillAttention] = []
    for name, offer in others.items():
        try:
            other = offer()
        except RefusedError as refusal:
            _log.info("prompts without %s: %s", name, refusal)
            continue
        if not model.served(other):
            _log.info("prompts without %s: it needs %s", name, other.needs)
            continue
        fault = _fault(other, ours, model, model.scratch())
        if fault is None:
            right.append(other)
        else:
            _log.log(fault.level, "prompts without %s: %s", name, fault.reason)
    return right


def _fault(
    other: PrefillAttention, ours: PrefillAttention, model: _Model, scratch: Scratch
) -> Fault | None:
    """Try it on each kind of layer, also at the sizes that are measured, and at the longest."""

    def measured() -> Iterator[Step]:
        longest = min(model.max_tokens, scratch.num_tokens)
        if other.serves(alone := (Chunk(longest, longest),)):
            yield scratch.step(alone)
        for is_whole in (True, False):
            for _, chunks in model.classes(scratch, is_whole=is_whole):
                if other.serves(chunks):
                    yield scratch.step(chunks)

    windows = [layer.window for layer in model.layers]
    for layer in model.served(other):
        steps = chain(trial_steps(scratch, other, windows), measured())
        if (fault := fault_of(other, ours, steps, layer)) is not None:
            return fault
    return None


def _measured(
    others: list[PrefillAttention],
    ours: PrefillAttention,
    model: _Model,
    seconds_of: SecondsOf,
) -> PrefillChoice:
    scratch = model.scratch()
    guarded = {other.name: GuardedPrefill(other, ours) for other in others}

    def by_length(*, is_whole: bool) -> ByLength:
        found: dict[int, PrefillAttention] = {}
        for length, chunks in model.classes(scratch, is_whole=is_whole):
            serving = [other for other in others if other.serves(chunks)]
            if not serving:
                break
            times = {
                one.name: timing.times_of(one, chunks, scratch, model.layers, seconds_of)
                for one in (ours, *serving)
            }
            name = timing.fastest(times.pop(ours.name), times, model.layers)
            found[length] = ours if name is None else guarded[name]
        kind = "whole prompts" if is_whole else "later chunks"
        shown = ", ".join(f"{length} {one.name}" for length, one in found.items())
        _log.info("%s by length: %s", kind, shown or ours.name)
        return found

    choice = PrefillChoice(by_length(is_whole=True), by_length(is_whole=False), ours)
    if model.cache.keys.is_cuda:
        del scratch
        torch.cuda.empty_cache()
    return choice
