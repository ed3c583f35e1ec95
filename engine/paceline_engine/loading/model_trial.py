"""Builds a model's runners over a cache: a small one, to measure what they take, then its own."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.loading.assembly import Assembly
from paceline_engine.loading.capture import sampled_graph_bytes, uses_graphs
from paceline_engine.loading.measured_memory import MeasuredMemory
from paceline_engine.loading.memory_gauge import MemoryGauge
from paceline_engine.loading.memory_trial import measure_trial
from paceline_engine.loading.out_of_memory import memory_explained
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.group import Group
from paceline_engine.profiling.every_variant import launch_every_variant, launch_widest
from paceline_engine.runner.graph_capture import GraphCapture
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.sampler import Sampler
from paceline_wire.limits import Capacity

_TRIAL_BLOCKS = 16
"""Blocks of a trial's cache: a multiple of 16, so that it runs the same kernel variants."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Runners:
    """What computes the steps of a model, and of its draft model."""

    model: ModelRunner
    kv: KvTensors
    draft: ModelRunner | None
    draft_kv: KvTensors | None

    @property
    def caches(self) -> tuple[KvTensors, ...]:
        """Return the cache of each."""
        return (self.kv,) if self.draft_kv is None else (self.kv, self.draft_kv)


@dataclass(frozen=True, slots=True)
class RunnerParts:
    """All that runners are made of but the size of their caches."""

    assembly: Assembly
    decoder: Decoder
    draft_decoder: Decoder | None
    sampler: Sampler
    salt: bytes
    """One for both models: what draws with the same number draws the same token."""
    adapters: LoraAdapters | None
    group: Group

    def runners(
        self, capacity: Capacity, prefills: tuple[PrefillChoice | None, ...] = (None, None)
    ) -> Runners:
        """Take the memory of the caches, and put the runners together."""
        assembly, salt = self.assembly, self.salt
        kv = assembly.kv(self.decoder, capacity)
        model = assembly.runner(
            self.decoder,
            kv,
            capacity,
            self.sampler,
            salt=salt,
            adapters=self.adapters,
            group=self.group,
            prefill=prefills[0],
        )
        if self.draft_decoder is None:
            return Runners(model, kv, None, None)
        draft_kv = assembly.kv(self.draft_decoder, capacity)
        draft = assembly.runner(
            self.draft_decoder,
            draft_kv,
            capacity,
            self.sampler,
            salt=salt,
            # The model replaces a rejected draft token, so the host tells it the newest token.
            tokens_stay=False,
            prefill=prefills[1],
        )
        return Runners(model, kv, draft, draft_kv)

    def prefills(self, capacity: Capacity) -> tuple[PrefillChoice | None, ...]:
        """Choose once, for a trial, for serving and for all ranks: on a GPU it may be timed."""
        one_block = replace(capacity, num_blocks=1)

        def chosen(decoder: Decoder) -> PrefillChoice:
            kv = self.assembly.kv(decoder, one_block)
            prefill = self.assembly.prefill(decoder.config, kv, capacity)
            return prefill if self.group.size == 1 else prefill.agreed(self.group.least)

        decoders = (self.decoder, self.draft_decoder)
        return tuple(None if each is None else chosen(each) for each in decoders)

    def measured(
        self,
        estimated: Capacity,
        gauge: MemoryGauge,
        prefills: tuple[PrefillChoice | None, ...],
        new_capture: Callable[[], GraphCapture] | None = None,
    ) -> MeasuredMemory:
        """Measure what steps and graphs take, with tables for the longest sequence there may be.

        Raises `DoesNotFit` where that alone does not fit.
        """
        config, settings = self.decoder.config, self.assembly.settings
        capacity = replace(
            estimated,
            num_blocks=_TRIAL_BLOCKS,
            max_model_len=min(config.max_len, settings.max_model_len or config.max_len),
        )
        when = "in a full step beside the weights, without a KV cache"
        with memory_explained(settings, when):
            return measure_trial(gauge, lambda: _ModelTrial(self, capacity, prefills, new_capture))


class _ModelTrial:
    """Runners over a small cache. Implements `Trial`."""

    def __init__(
        self,
        parts: RunnerParts,
        capacity: Capacity,
        prefills: tuple[PrefillChoice | None, ...],
        new_capture: Callable[[], GraphCapture] | None,
    ) -> None:
        self._parts = parts
        self._capacity = capacity
        self._new_capture = new_capture
        self._runners = parts.runners(capacity, prefills)

    @property
    def cache_bytes(self) -> int:
        """See `Trial`."""
        return sum(each.nbytes for kv in self._runners.caches for each in kv.all)

    def run_steps(self) -> None:
        """See `Trial`; ranks above 0 run what the first one tells of, until it says that is all."""
        parts, runners = self._parts, self._runners
        is_first = parts.group.rank == 0
        launch_every_variant(
            runners.model,
            self._capacity,
            is_first=is_first,
            has_adapters=parts.adapters is not None,
            draft=runners.draft,
            clock=time.perf_counter,
        )
        if is_first:
            launch_widest(runners.model, self._capacity)
            parts.group.end()
        else:
            runners.model.follow()
        if runners.draft is not None:
            launch_widest(runners.draft, self._capacity, is_draft=True)

    def graph_bytes(self, gauge: MemoryGauge) -> int:
        """See `Trial`."""
        runners = self._runners
        if not uses_graphs(self._parts.assembly.settings, self._parts.assembly.device):
            return 0
        return sampled_graph_bytes(
            runners.model,
            self._capacity,
            lambda: gauge.read().free_bytes,
            draft=runners.draft,
            kinds=1 if self._parts.adapters is None else 2,
            new_capture=self._new_capture,
        )


def tell_of_memory(measured: MeasuredMemory, kv_bytes: int, gauge: MemoryGauge) -> None:
    """Say after the start where the memory has gone, in one line."""
    left = gauge.read().free_bytes
    _log.info(
        "memory: %s, KV cache %s MiB; %s MiB free after the start",
        measured.sentence,
        f"{kv_bytes / (1 << 20):,.0f}",
        f"{left / (1 << 20):,.0f}",
    )
