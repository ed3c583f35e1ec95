"""Loads a model: find it, read its weights, take the KV memory, run a few steps to warm up."""

import logging
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch

from paceline_engine.attention.prefill.choice import PrefillChoice
from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.tokenizer import NO_TOKENIZER, TokenizerFiles
from paceline_engine.checkpoint.uri import Located, Places, locate
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.drafting.draft_model import LoadedDraft
from paceline_engine.hardware.cores import CoreUse, CpuShare
from paceline_engine.hardware.cores_reader import read_share
from paceline_engine.hardware.placing import core_use, placed
from paceline_engine.kv_cache.host_blocks import HostBlocks
from paceline_engine.loading import memory
from paceline_engine.loading.assembly import Assembly
from paceline_engine.loading.capture import capture_graphs, graphs_bytes, uses_graphs
from paceline_engine.loading.device import choose_device, look, require_kernels_cover
from paceline_engine.loading.draft import OpenedDraft, open_draft
from paceline_engine.loading.dtype import DtypeChoice
from paceline_engine.loading.dtype_trial import choose_dtype
from paceline_engine.loading.meanwhile import meanwhile
from paceline_engine.loading.measured_memory import MeasuredMemory, measured_kv_bytes
from paceline_engine.loading.memory_gauge import CudaGauge
from paceline_engine.loading.model_trial import RunnerParts, Runners, tell_of_memory
from paceline_engine.loading.out_of_memory import memory_explained
from paceline_engine.loading.peer_sums import (
    GraphTimer,
    TorchPeerSource,
    WidestSum,
    share_memory,
)
from paceline_engine.loading.row_trial import with_row_products
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.group import Group
from paceline_engine.model.sharding import shard_of
from paceline_engine.profiling.every_variant import launch_every_variant
from paceline_engine.profiling.warm_up import warm_up
from paceline_engine.runner.graph_use import GraphUse
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.cpu_sampler import CpuSampler
from paceline_engine.sampling.device_sampler import DeviceSampler
from paceline_engine.sampling.sampler import Sampler
from paceline_engine.settings import Settings
from paceline_kernels.compiled import tell_of_variants
from paceline_kernels.dependent import dependent
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity

_log = logging.getLogger(__name__)

Progress = Callable[[str, float], None]
"""Called with the stage and its fraction, 0 to 1."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, with the memory of its cache allocated."""

    runner: ModelRunner
    info: ModelInfo
    capacity: Capacity
    tokenizer: TokenizerFiles = NO_TOKENIZER
    """Only rank 0 has it: the other ranks make none."""
    swapper: HostBlocks | None = None
    """Host memory for preempted requests, where the settings give any."""
    adapters: LoraAdapters | None = None
    """None where the settings allow none."""
    group: Group = field(default_factory=Group)
    """The ranks that run it."""
    draft: LoadedDraft | None = None
    """The draft model, where the settings name one."""

    @property
    def graph_use(self) -> GraphUse:
        """Count how often steps are replayed from CUDA graphs."""
        return self.runner.graph_use


def load_model(
    settings: Settings,
    progress: Progress,
    take_tokenizer: Callable[[TokenizerFiles], None] | None = None,
    *,
    share: CpuShare | None = None,
) -> LoadedModel:
    """Load what `settings` name, or raise the `EngineError` that says why it cannot be had.

    The tokenizer is made in a thread meanwhile, in which `take_tokenizer` is called with it.
    A caller that gives `share`, the CPUs of this process, has already placed the process on them.
    Without it no thread is pinned, because torch has loaded OpenMP before.
    """
    if share is None:
        share = read_share(asked=settings.cpus)
        settings = settings.model_copy(update={"pin_threads": "off"})
    progress("fetching", 0.0)
    places = _places(settings, partial(progress, "fetching"))
    located = locate(settings.model_uri, settings.model_revision, places)
    progress("reading", 0.0)
    checkpoint = open_checkpoint(located.path)
    draft = open_draft(settings, places, checkpoint)
    shard_of(checkpoint.config, settings.tensor_parallel_size)  # refused before ranks are started

    def make_tokenizer() -> None:
        tokenizer = checkpoint.tokenizer
        if take_tokenizer is not None:
            take_tokenizer(tokenizer)

    with meanwhile(make_tokenizer) as check:

        def checked(stage: str, fraction: float) -> None:
            check()
            progress(stage, fraction)

        loaded = _load_opened(settings, located, checkpoint, draft, share=share, progress=checked)
    return replace(loaded, tokenizer=checkpoint.tokenizer)


def _load_opened(
    settings: Settings,
    located: Located,
    checkpoint: Checkpoint,
    draft: OpenedDraft | None,
    *,
    share: CpuShare,
    progress: Progress,
) -> LoadedModel:
    """Start the other ranks, where there are any, and load the part of rank 0."""
    device = _device(settings, checkpoint.config, share, rank=0)
    dtype = choose_dtype(settings, device)
    if device.type == "cpu":
        _log_choices(core_use(settings, share), dtype)
    group = Group(0, settings.tensor_parallel_size)
    if group.size > 1:
        group.start(
            _follow,
            (settings, located.path, share, dtype),
            lambda rank: _placed(settings, share, device, rank),
        )
    try:
        with memory_explained(settings, "while the model was loaded"):
            return load_checkpoint(
                settings,
                located,
                checkpoint,
                group,
                progress,
                share=share,
                dtype=dtype,
                draft=draft,
            )
    except BaseException:
        group.kill()
        raise


def _log_choices(use: CoreUse, dtype: DtypeChoice) -> None:
    _log.info("%s", use.sentence)
    _log.info("%s", dtype.sentence)
    for remark in filter(None, (*use.remarks, dtype.remark)):
        _log.warning("%s", remark)


def _placed(
    settings: Settings, share: CpuShare, device: torch.device, rank: int
) -> AbstractContextManager[None]:
    """Return the context in which a rank starts: placed on its CPUs, unless it has a GPU."""
    return placed(core_use(settings, share, rank)) if device.type == "cpu" else nullcontext()


_Told: TypeAlias = tuple[Settings, Path, CpuShare, DtypeChoice]


def _follow(group: Group, told: _Told, rendezvous: Path) -> None:
    """Load a rank above 0 and run rank 0's steps, until rank 0 ends it."""
    settings, path, share, dtype = told
    group.join(rendezvous)
    located = Located(path.name, path, revision="")
    loaded = load_checkpoint(
        settings,
        located,
        open_checkpoint(path),
        group,
        lambda _stage, _done: None,
        share=share,
        dtype=dtype,
    )
    loaded.runner.follow()
    group.leave()


def load_checkpoint(
    settings: Settings,
    located: Located,
    checkpoint: Checkpoint,
    group: Group,
    progress: Progress,
    *,
    share: CpuShare,
    dtype: DtypeChoice,
    draft: OpenedDraft | None = None,
) -> LoadedModel:
    """Load one rank's part of an opened model. Raises as `load_model`."""
    device = _device(settings, checkpoint.config, share, group.rank)
    dependent.is_on = settings.dependent_launches == "on"
    parts = Assembly(settings, device, dtype, core_use(settings, share, group.rank))
    if draft is not None:
        _require_both_fit(parts, checkpoint, draft)
    loras = settings.max_loras
    adapters = LoraAdapters(loras, settings.max_lora_rank) if loras else None

    def weights_read(fraction: float) -> None:
        progress("loading weights", fraction)

    decoder = parts.decoder(
        checkpoint,
        weights_read,
        quantization=settings.quantization,
        adapters=adapters,
        group=group,
    )
    draft_decoder = None
    if draft is not None:
        draft_decoder = parts.decoder(
            draft.checkpoint,
            weights_read,
            quantization=settings.quantization_of_draft,
            # Its head may lose precision, because the model verifies every draft token.
            quantizes_head=settings.draft_quantization is not None,
        )
    decoder = with_row_products(settings, decoder, device, group)
    if draft_decoder is not None:
        draft_decoder = with_row_products(settings, draft_decoder, device, group)
    # Before memory is measured, so that the ranks' buffers do not count as free.
    share_memory(
        group,
        WidestSum(settings.max_batch_size, checkpoint.config.hidden_size, parts.dtype, device),
        TorchPeerSource(),
        GraphTimer(device, in_graph=settings.graphs != "off"),
    )
    sampler: Sampler = DeviceSampler(checkpoint.eos_token_ids)
    salt = os.urandom(16)
    if device.type == "cpu":
        sampler = CpuSampler(checkpoint.eos_token_ids, salt)
    made_of = RunnerParts(parts, decoder, draft_decoder, sampler, salt, adapters, group)
    capacity, prefills, measured = _sized(made_of, progress)
    runners = made_of.runners(capacity, prefills)
    runner, draft_runner = runners.model, runners.draft
    loaded_draft = None
    if draft is not None and draft_decoder is not None and draft_runner is not None:
        loaded_draft = LoadedDraft(
            draft_runner,
            parts.info(
                draft.located,
                draft.checkpoint,
                capacity,
                draft_decoder,
                settings.quantization_of_draft,
            ),
        )
    _start(made_of, runners, capacity, progress)
    if measured is not None:
        kv_bytes = sum(each.nbytes for kv in runners.caches for each in kv.all)
        tell_of_memory(measured, kv_bytes, CudaGauge(device))
        tell_of_variants(_warn_of_variant)
    return LoadedModel(
        runner,
        parts.info(located, checkpoint, capacity, decoder, settings.quantization),
        capacity,
        swapper=parts.swapper(runners.kv),
        adapters=adapters,
        group=group,
        draft=loaded_draft,
    )


def _require_both_fit(parts: Assembly, checkpoint: Checkpoint, draft: OpenedDraft) -> None:
    settings, both = parts.settings, (checkpoint, draft.checkpoint)
    quantizations = (settings.quantization, settings.quantization_of_draft)
    kept = [
        parts.kept_bytes(each, quantization)
        for each, quantization in zip(both, quantizations, strict=True)
    ]
    memory.require_both_fit(
        [each.config for each in both],
        parts.dtype,
        quantizations,
        memory.measure(parts.device),
        kept=kept,
    )


def _sized(
    made_of: RunnerParts, progress: Progress
) -> tuple[Capacity, tuple[PrefillChoice | None, ...], MeasuredMemory | None]:
    """Return the cache's capacity; on a GPU from the measured memory of steps and graphs."""
    estimated = _capacity(made_of)
    if made_of.assembly.device.type == "cpu":
        return estimated, (None, None), None
    progress("measuring memory", 0.0)
    prefills = made_of.prefills(estimated)
    gauge = CudaGauge(made_of.assembly.device)
    measured = made_of.measured(estimated, gauge, prefills)
    progress("measuring memory", 1.0)
    # The swap buffer is allocated after everything else, so the measured step lacks it.
    staged = memory.staged_bytes(
        made_of.assembly.settings, made_of.decoder.config, made_of.assembly.dtype
    )
    measured = replace(measured, step_bytes=measured.step_bytes + staged)
    return _capacity(made_of, measured), prefills, measured


def _start(made_of: RunnerParts, runners: Runners, capacity: Capacity, progress: Progress) -> None:
    """Run a few steps, and capture graphs."""
    settings, device = made_of.assembly.settings, made_of.assembly.device
    is_first = made_of.group.rank == 0
    progress("warming up", 0.0)
    if device.type == "cuda":
        launch_every_variant(
            runners.model,
            capacity,
            is_first=is_first,
            has_adapters=made_of.adapters is not None,
            draft=runners.draft,
            clock=time.perf_counter,
            is_again=True,
        )
    if is_first:
        warm_up(runners.model, capacity)
        made_of.group.end()
    else:
        runners.model.follow()
    progress("warming up", 1.0)
    if uses_graphs(settings, device):
        capture_graphs(
            settings, runners.model, capacity, progress, draft=runners.draft, is_first=is_first
        )


def _warn_of_variant(kernel: str) -> None:
    _log.warning("%s was compiled after the start: every request waited for it", kernel)


def _capacity(made_of: RunnerParts, measured: MeasuredMemory | None = None) -> Capacity:
    """Return the capacity of both models' caches in the memory that is left.

    Until steps and graphs are measured, their memory is estimated.
    """
    parts, config = made_of.assembly, made_of.decoder.config
    settings, dtype, device = parts.settings, parts.dtype, parts.device
    beside = [] if made_of.draft_decoder is None else [made_of.draft_decoder.config]
    if measured is not None:
        kv_bytes = measured_kv_bytes(measured, settings)
    else:
        step_bytes = max(
            memory.peak_step_bytes(each, settings.max_token_budget, dtype)
            for each in [config, *beside]
        )
        if uses_graphs(settings, device):
            step_bytes += graphs_bytes(settings, config, dtype, beside=beside)
        step_bytes += memory.staged_bytes(settings, config, dtype)
        kv_bytes = memory.kv_bytes(settings, device, memory.measure(device), step_bytes)
    kv_bytes = made_of.group.least(kv_bytes)
    return memory.capacity(settings, config, dtype, device, kv_bytes, beside=beside)


def _places(settings: Settings, progress: Callable[[float], None]) -> Places:
    hub = Hub(settings.cache_dir, settings.hf_token, progress=progress)
    return Places(settings.models_dir, settings.model_mount, hub)


def _device(settings: Settings, config: ModelConfig, share: CpuShare, rank: int) -> torch.device:
    device = choose_device(settings, look(), rank)
    require_kernels_cover(config, device)
    # On a GPU, too: the host's ops would take every CPU of the node.
    torch.set_num_threads(core_use(settings, share, rank).threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device
