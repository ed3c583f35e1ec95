"""Chooses the prefill attention of a step: as set, or by trials and timings at start."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from paceline_engine.attention.prefill import timing
from paceline_engine.attention.prefill.prompts import (
    LayerCache,
    PrefillAttention,
    PromptChunk,
    Prompts,
    ScoreRules,
    our_prefill,
)
from paceline_engine.attention.prefill.sdpa import (
    MOST_GATHERED,
    NEEDS,
    are_whole,
    sdpa_prefill,
    serves_layer,
)
from paceline_engine.attention.prefill.timing import SecondsOf
from paceline_engine.attention.prefill.trial import Fault, fault_of
from paceline_engine.attention.prefill.trial_steps import (
    TimedStep,
    TrialCache,
    TrialStep,
    ragged_steps,
    timed_laters,
    timed_wholes,
)
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import BadSettings
from paceline_engine.settings import PrefillSetting

_BEHIND = 77
"""Tokens before the chunks of ragged steps: neither whole blocks nor whole tiles."""
_log = logging.getLogger(__name__)
_Size = TypeVar("_Size", int, PromptChunk)


class PrefillChoice:
    """SDPA for prompts of some lengths and later chunks of some sizes, our kernel for the rest.

    Once an SDPA call raises while serving, our kernel is used from then on. A GPU
    whose memory was accessed illegally raises in ours too, and the process ends.
    """

    def __init__(
        self,
        is_sdpas: Mapping[int, bool] | None = None,
        are_laters_sdpas: Mapping[PromptChunk, bool] | None = None,
        *,
        sdpa: PrefillAttention = sdpa_prefill,
        ours: PrefillAttention = our_prefill,
    ) -> None:
        """`is_sdpas` maps the shortest mean prompt length of each range to whether SDPA serves it.

        `are_laters_sdpas` does the same for steps with later chunks, by the lower bounds of their
        mean tokens and of their longest context.
        """
        self.is_sdpas = is_sdpas or {}
        self.are_laters_sdpas = are_laters_sdpas or {}
        self.ours = ours
        self._sdpa = sdpa
        self.has_failed = False
        """SDPA has raised while it served."""

    def agreed(self, least: Callable[[int], int]) -> "PrefillChoice":
        """Keep SDPA only where every rank measured it to be faster.

        All ranks run the same steps, so each needs memory for whatever one of them gathers. `least`
        returns the smallest number over all ranks; every rank must call it equally often.
        """
        wholes, laters = _agreed(self.is_sdpas, least), _agreed(self.are_laters_sdpas, least)
        return PrefillChoice(wholes, laters, sdpa=self._sdpa, ours=self.ours)

    def of_step(self, chunks: tuple[PromptChunk, ...]) -> PrefillAttention:
        """Choose by the mean length of the step's chunks, and of what they see."""
        if self.has_failed or not chunks:
            return self.ours
        is_sdpas = self._is_whole_sdpas if are_whole(chunks) else self._is_later_sdpas
        return self.sdpa_or_ours if is_sdpas(chunks) else self.ours

    def _is_whole_sdpas(self, chunks: tuple[PromptChunk, ...]) -> bool:
        mean = sum(chunk.tokens for chunk in chunks) / len(chunks)
        least = max((length for length in self.is_sdpas if length <= mean), default=None)
        return least is not None and self.is_sdpas[least]

    def _is_later_sdpas(self, chunks: tuple[PromptChunk, ...]) -> bool:
        # By the longest context: it bounds the buffer that contexts are gathered into.
        context = max(chunk.context for chunk in chunks)
        mean = sum(chunk.tokens for chunk in chunks) / len(chunks)
        sizes = self.are_laters_sdpas
        least = max(
            (one for one in sizes if one.tokens <= mean and one.context <= context), default=None
        )
        return context <= MOST_GATHERED and least is not None and sizes[least]

    def largest_gathers(self, max_tokens: int, max_context: int) -> tuple[PromptChunk, ...]:
        """Return the largest chunk of each size that SDPA serves: for it, it gathers most."""
        sizes, most_context = self.are_laters_sdpas, min(max_context, MOST_GATHERED)
        largest = []
        for size in (size for size, is_sdpas in sizes.items() if is_sdpas):
            context = _below((one.context for one in sizes), size.context, most_context)
            as_long = (one.tokens for one in sizes if one.context <= size.context)
            tokens = min(_below(as_long, size.tokens, max_tokens), context - 1)
            if size.tokens <= tokens and size.context <= context:
                largest.append(PromptChunk(tokens, context))
        return tuple(largest)

    def sdpa_or_ours(
        self,
        q: Tensor,
        cache: LayerCache,
        prompts: Prompts,
        rules: ScoreRules,
        out: Tensor | None = None,
        /,
    ) -> Tensor:
        """Attend with SDPA where it serves the layer and does not fail."""
        if self.has_failed or not serves_layer(cache, rules):
            return self.ours(q, cache, prompts, rules, out)
        try:
            return self._sdpa(q, cache, prompts, rules, out)
        except Exception as error:  # noqa: BLE001 - whatever it is, ours serves
            first_line = str(error).partition("\n")[0]
            _log.warning(
                "prompts by triton from now on: sdpa raised %s: %s",
                type(error).__name__,
                first_line,
            )
            self.has_failed = True
            return self.ours(q, cache, prompts, rules, out)


def choose(
    setting: PrefillSetting,
    config: ModelConfig,
    cache: LayerCache,
    max_tokens: int,
    max_context: int,
    *,
    sdpa: PrefillAttention = sdpa_prefill,
    ours: PrefillAttention = our_prefill,
    seconds_of: SecondsOf = timing.on_device,
) -> PrefillChoice:
    """Decide for a model's layers, on the device of its cache; timed where the setting is `auto`.

    `max_tokens` is the longest chunk of a step, `max_context` the longest sequence. The cache is
    not touched: a trial has one of its own. Raises BadSettings where `sdpa` is set and serves no
    layer, or is not right.
    """
    if setting == "triton":
        return PrefillChoice(ours=ours)
    all_layers = Counter(
        ScoreRules(config.score_scale, window, config.attention_softcap)
        for window in config.windows
    )
    layers = {rules: n for rules, n in all_layers.items() if serves_layer(cache, rules)}
    if not layers:
        if setting == "sdpa":
            raise BadSettings(
                "PACELINE_ENGINE_PREFILL_ATTENTION is sdpa, which serves none of the model's "
                f"layers: it needs {NEEDS}."
            )
        _log.info("prompts without sdpa: it needs %s", NEEDS)
        return PrefillChoice(ours=ours)
    trial = _Trial(
        sdpa, ours, TrialCache(cache, config.num_q_heads), layers, max_tokens, max_context
    )
    fault = trial.fault(trial.whole_steps())
    if setting == "sdpa":
        if fault is not None:
            heads = f"{config.num_q_heads} heads of {config.head_size}"
            dtype = str(cache.keys.dtype).removeprefix("torch.")
            raise BadSettings(
                f"PACELINE_ENGINE_PREFILL_ATTENTION is sdpa, but for {heads} over "
                f"{config.num_kv_heads} in {dtype} it is not right: {fault.reason}."
            )
        return PrefillChoice({0: True}, sdpa=sdpa, ours=ours)
    if fault is not None:
        _log.log(fault.level, "prompts without sdpa: %s", fault.reason)
        return PrefillChoice(ours=ours)
    is_sdpas = {
        step.chunks[0].tokens: trial.is_worth_it(step, seconds_of) for step in trial.timed_wholes
    }
    _log.info("whole prompts by length: %s", _shown(is_sdpas))
    are_laters_sdpas: dict[PromptChunk, bool] = {}
    if (fault := trial.fault(trial.later_steps())) is not None:
        _log.log(fault.level, "later chunks without sdpa: %s", fault.reason)
    else:
        are_laters_sdpas = {
            step.chunks[0]: trial.is_worth_it(step, seconds_of) for step in trial.timed_laters
        }
        shown = {f"{one.tokens} of {one.context}": is_ for one, is_ in are_laters_sdpas.items()}
        _log.info("later chunks by tokens and context: %s", _shown(shown))
    del trial
    if cache.keys.is_cuda:
        torch.cuda.empty_cache()
    return PrefillChoice(is_sdpas, are_laters_sdpas, sdpa=sdpa, ours=ours)


def _agreed(is_sdpas: Mapping[_Size, bool], least: Callable[[int], int]) -> dict[_Size, bool]:
    if not least(len(is_sdpas)):  # some rank does not use SDPA: it has no sizes to compare
        return {}
    return {size: bool(least(int(is_))) for size, is_ in is_sdpas.items()}


def _shown(is_sdpas: Mapping[Any, bool]) -> str:
    named = (f"{size} {'sdpa' if is_ else 'triton'}" for size, is_ in is_sdpas.items())
    return ", ".join(named) or "triton"


def _below(floors: Iterable[int], floor: int, most: int) -> int:
    """Return the largest number of the class whose smallest number is `floor`."""
    return min(most, *(each - 1 for each in floors if each > floor), most)


@dataclass(frozen=True, slots=True)
class _Trial:
    """SDPA beside our kernel on the kinds of layers that it serves."""

    sdpa: PrefillAttention
    ours: PrefillAttention
    cache: TrialCache
    layers: Mapping[ScoreRules, int]
    """The number of layers of each kind."""
    max_tokens: int
    max_context: int

    @property
    def timed_wholes(self) -> Iterator[TimedStep]:
        """Steps of whole prompts that stand for all lengths."""
        return timed_wholes(self._longest)

    @property
    def timed_laters(self) -> Iterator[TimedStep]:
        """Steps of one later chunk that stand for all sizes."""
        return timed_laters(self.max_tokens, min(self.max_context, MOST_GATHERED))

    def whole_steps(self) -> Iterator[TrialStep]:
        """Make ragged steps, those that are timed, and the longest."""
        yield from ragged_steps(self.cache)
        yield self.cache.step([PromptChunk(self._longest, self._longest)])
        yield from (self.cache.step(step.chunks) for step in self.timed_wholes)

    def later_steps(self) -> Iterator[TrialStep]:
        """Make ragged steps of chunks behind a context, and those that are timed."""
        yield from ragged_steps(self.cache, behind=_BEHIND)
        yield from (self.cache.step(step.chunks) for step in self.timed_laters)

    def fault(self, steps: Iterator[TrialStep]) -> Fault | None:
        """Compare the two on steps, in every kind of layer."""
        compared = (
            fault_of(self.sdpa, self.ours, [step], rules) for step in steps for rules in self.layers
        )
        return next((fault for fault in compared if fault is not None), None)

    @property
    def _longest(self) -> int:
        return min(self.max_tokens, self.cache.num_tokens)

    def is_worth_it(self, step: TimedStep, seconds_of: SecondsOf) -> bool:
        """Tell whether SDPA is worth it in steps like this one."""

        def times(attention: PrefillAttention) -> timing.StepTimes:
            return {
                rules: timing.times_of(attention, step, self.cache, rules, seconds_of)
                for rules in self.layers
            }

        return timing.is_worth_it(times(self.ours), times(self.sdpa), self.layers)
