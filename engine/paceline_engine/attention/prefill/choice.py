"""Chooses who attends for a step's prompts: as was set, or as was tried and timed at start."""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

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
from paceline_engine.attention.prefill.sdpa import NEEDS, sdpa_prefill, serves, serves_layer
from paceline_engine.attention.prefill.timing import SecondsOf
from paceline_engine.attention.prefill.trial import Fault, fault_of
from paceline_engine.attention.prefill.trial_steps import (
    TrialCache,
    TrialStep,
    ragged_steps,
    timed_lengths,
)
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import BadSettings
from paceline_engine.settings import PrefillSetting

_log = logging.getLogger(__name__)


class PrefillChoice:
    """SDPA for whole prompts of some lengths, our kernel for everything else.

    SDPA's first call that raises while it serves is its last: our kernel serves from then on. A GPU
    whose memory was accessed illegally raises in ours too, and the process ends.
    """

    def __init__(
        self,
        is_sdpas: Mapping[int, bool] | None = None,
        *,
        sdpa: PrefillAttention = sdpa_prefill,
        ours: PrefillAttention = our_prefill,
    ) -> None:
        """`is_sdpas`: whether SDPA serves, by the shortest mean length from which that holds."""
        self.is_sdpas = is_sdpas or {}
        self.ours = ours
        self._sdpa = sdpa
        self._has_failed = False

    def of_step(self, chunks: tuple[PromptChunk, ...]) -> PrefillAttention:
        """Choose by the mean length of the step's chunks."""
        if self._has_failed or not chunks or not serves(chunks):
            return self.ours
        mean = sum(chunk.tokens for chunk in chunks) / len(chunks)
        least = max((length for length in self.is_sdpas if length <= mean), default=None)
        return self.ours if least is None or not self.is_sdpas[least] else self.sdpa_or_ours

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
        if self._has_failed or not serves_layer(cache, rules):
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
            self._has_failed = True
            return self.ours(q, cache, prompts, rules, out)


def choose(
    setting: PrefillSetting,
    config: ModelConfig,
    cache: LayerCache,
    max_tokens: int,
    *,
    sdpa: PrefillAttention = sdpa_prefill,
    ours: PrefillAttention = our_prefill,
    seconds_of: SecondsOf = timing.on_device,
) -> PrefillChoice:
    """Decide for a model's layers, on the device of its cache; timed where the setting is `auto`.

    `max_tokens` is the longest chunk of a step. The cache is not touched: a trial has one of its
    own. Raises BadSettings where `sdpa` is set and serves no layer, or is not right.
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
    trial = _Trial(sdpa, ours, TrialCache(cache, config.num_q_heads), layers, max_tokens)
    fault = trial.fault()
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
    is_sdpas = trial.timed(seconds_of)
    shown = ", ".join(f"{length} {'sdpa' if is_ else 'triton'}" for length, is_ in is_sdpas.items())
    _log.info("whole prompts by length: %s", shown or "triton")
    del trial
    if cache.keys.is_cuda:
        torch.cuda.empty_cache()
    return PrefillChoice(is_sdpas, sdpa=sdpa, ours=ours)


@dataclass(frozen=True, slots=True)
class _Trial:
    """SDPA beside our kernel on the kinds of layers that it serves."""

    sdpa: PrefillAttention
    ours: PrefillAttention
    cache: TrialCache
    layers: Mapping[ScoreRules, int]
    """Each kind, and how many there are."""
    max_tokens: int

    def fault(self) -> Fault | None:
        """Compare them on ragged steps, at the lengths that are timed, and at the longest."""
        for rules in self.layers:
            steps = chain(ragged_steps(self.cache), self._timed_steps())
            if (fault := fault_of(self.sdpa, self.ours, steps, rules)) is not None:
                return fault
        return None

    def _timed_steps(self) -> Iterator[TrialStep]:
        yield self.cache.step([self._longest])
        for _, lengths in timed_lengths(self._longest):
            yield self.cache.step(lengths)

    @property
    def _longest(self) -> int:
        return min(self.max_tokens, self.cache.num_tokens)

    def timed(self, seconds_of: SecondsOf) -> dict[int, bool]:
        """Tell at each length whether SDPA is worth it."""

        def times(attention: PrefillAttention, lengths: tuple[int, ...]) -> timing.StepTimes:
            return {
                rules: timing.times_of(attention, lengths, self.cache, rules, seconds_of)
                for rules in self.layers
            }

        return {
            length: timing.is_worth_it(
                times(self.ours, lengths), times(self.sdpa, lengths), self.layers
            )
            for length, lengths in timed_lengths(self._longest)
        }
