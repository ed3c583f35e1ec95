"""Loads a model: find it, read its weights, take the KV memory, run a few steps to warm up."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from paceline_engine import __version__
from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.checkpoint.uri import Located, Places, locate
from paceline_engine.drafting.loaded import LoadedDraft
from paceline_engine.errors import DoesNotFit
from paceline_engine.kv_cache.tensors import KvTensors, allocate
from paceline_engine.limits import Capacity
from paceline_engine.model import memory
from paceline_engine.model.adapters import LoraAdapters
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.device import choose_device, look, require_kernels_cover
from paceline_engine.model.draft import OpenedDraft, open_draft
from paceline_engine.model.group import Group
from paceline_engine.model.identity import cost_features, device_name
from paceline_engine.model.layers.rotary import rotations
from paceline_engine.model.sharding import shard_of
from paceline_engine.model.weights import as_it_is, build_decoder
from paceline_engine.running.attention import AttentionBackend
from paceline_engine.running.cpu_backend import cpu_attention
from paceline_engine.running.host_blocks import HostBlocks
from paceline_engine.running.kernel_attention import KernelAttention
from paceline_engine.running.launcher import ModelLauncher
from paceline_engine.running.ops import ops_for
from paceline_engine.running.runner import ModelRunner
from paceline_engine.running.warm_up import warm_up
from paceline_engine.sampling.sampler import Sampler
from paceline_engine.settings import Settings
from paceline_engine.wire import ModelInfo
from paceline_kernels.cpu import NativeOps

Progress = Callable[[str, float], None]
"""Told the stage and its fraction, 0 to 1."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model on its device, with the memory of its cache allocated."""

    runner: ModelRunner
    info: ModelInfo
    capacity: Capacity
    tokenizer: TokenizerFiles
    swapper: HostBlocks | None = None
    """Host memory for preempted requests, where the settings give any."""
    adapters: LoraAdapters | None = None
    """Where the settings allow any."""
    group: Group = field(default_factory=Group)
    """The ranks that run it."""
    draft: LoadedDraft | None = None
    """A second model that guesses for it, where the settings name one."""

    @property
    def launcher(self) -> ModelLauncher | None:
        """What lets steps overlap; ranks above 0 would need tokens that only rank 0 has."""
        if self.group.size > 1:
            return None
        return ModelLauncher(self.runner, self.capacity.max_batch_size)

    def write_tokenizer(self, run_dir: Path) -> None:
        """Put the tokenizer's files where the sidecar reads them."""
        self.tokenizer.write(run_dir)


def load_model(settings: Settings, progress: Progress) -> LoadedModel:
    """Load what `settings` name, or raise the `EngineError` that says why it cannot be had."""
    progress("fetching", 0.0)
    places = _places(settings)
    located = locate(settings.model_uri, settings.model_revision, places)
    progress("reading", 0.0)
    checkpoint = open_checkpoint(located.path)
    draft = open_draft(settings, places, checkpoint)
    shard_of(checkpoint.config, settings.tensor_parallel_size)  # refused before ranks are started
    _device(settings, checkpoint.config, rank=0)
    group = Group(0, settings.tensor_parallel_size)
    if group.size > 1:
        group.start(_follow, (settings, located.path))
    try:
        return _load(settings, located, checkpoint, group, progress, draft=draft)
    except torch.OutOfMemoryError as error:
        group.kill()
        raise DoesNotFit(
            "The GPU ran out of memory while the model was loaded: lower "
            f"PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION ({settings.kv_cache_memory_fraction:g}) or "
            f"PACELINE_ENGINE_MAX_TOKEN_BUDGET ({settings.max_token_budget})."
        ) from error
    except BaseException:
        group.kill()
        raise


def _follow(group: Group, told: tuple[Settings, Path], rendezvous: Path) -> None:
    """Live as a rank above 0."""
    settings, path = told
    group.join(rendezvous)
    located = Located(path.name, path, revision="")
    loaded = _load(settings, located, open_checkpoint(path), group, lambda _stage, _done: None)
    loaded.runner.follow()
    group.leave()


def _load(
    settings: Settings,
    located: Located,
    checkpoint: Checkpoint,
    group: Group,
    progress: Progress,
    *,
    draft: OpenedDraft | None = None,
) -> LoadedModel:
    """Load one rank's part."""
    device = _device(settings, checkpoint.config, group.rank)
    dtype = _dtype(settings, device)
    if draft is not None:
        configs = [checkpoint.config, draft.checkpoint.config]
        memory.require_both_fit(configs, dtype, settings.quantization, memory.measure(device))
    loras = settings.max_loras
    adapters = LoraAdapters(loras, settings.max_lora_rank) if loras else None
    decoder = _decoder(
        checkpoint, settings, device, dtype, progress=progress, adapters=adapters, group=group
    )
    guesser = _guesser(draft, settings, device, dtype, progress)
    config = decoder.config
    configs = [config] if guesser is None else [config, guesser.config]
    step_bytes = max(
        memory.peak_step_bytes(each, settings.max_token_budget, dtype) for each in configs
    )
    kv_bytes = group.least(memory.kv_bytes(settings, device, memory.measure(device), step_bytes))
    capacity = memory.capacity(settings, config, dtype, device, kv_bytes, beside=configs[1:])
    stored = memory.kv_dtype(settings, dtype)
    kv = _kv(decoder, capacity, stored)
    # One for both: what draws with the same number draws the same token.
    sampler = Sampler(checkpoint.eos_token_ids, salt=os.urandom(16))
    runner = _runner(decoder, kv, capacity, sampler, adapters=adapters, group=group)
    loaded_draft = None
    if draft is not None and guesser is not None:
        draft_info = _info(draft.located, draft.checkpoint, capacity, guesser, settings)
        loaded_draft = LoadedDraft(
            _runner(guesser, _kv(guesser, capacity, stored), capacity, sampler), draft_info
        )
    progress("warming up", 0.0)
    if group.rank == 0:
        warm_up(runner, capacity)
    progress("warming up", 1.0)
    info = _info(located, checkpoint, capacity, decoder, settings)
    swapper = _swapper(kv, settings)
    return LoadedModel(
        runner, info, capacity, checkpoint.tokenizer, swapper, adapters, group, loaded_draft
    )


def _places(settings: Settings) -> Places:
    hub = Hub(settings.cache_dir, settings.hf_token)
    return Places(settings.models_dir, settings.model_mount, hub)


def _device(settings: Settings, config: ModelConfig, rank: int) -> torch.device:
    device = choose_device(settings, look(), rank)
    require_kernels_cover(config, device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        return device
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(settings.threads or max(1, cores // settings.tensor_parallel_size))
    return device


def _dtype(settings: Settings, device: torch.device) -> torch.dtype:
    if settings.dtype == "auto":
        return torch.float32 if device.type == "cpu" else torch.bfloat16
    dtype: torch.dtype = getattr(torch, settings.dtype)
    return dtype


def _decoder(
    checkpoint: Checkpoint,
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
    *,
    progress: Progress,
    adapters: LoraAdapters | None,
    group: Group,
) -> Decoder:
    config, quantization = checkpoint.config, settings.quantization
    shard = shard_of(config, group.size)
    memory.require_weights_fit(shard, dtype, quantization, memory.measure(device))
    with torch.inference_mode():
        decoder = build_decoder(
            config,
            checkpoint.tensors,
            ops_for(device, dtype),
            device=device,
            dtype=dtype,
            quantization=quantization,
            progress=lambda fraction: progress("loading weights", fraction),
            wrap=as_it_is if adapters is None else adapters.wrap,
            group=group,
        )
        if adapters is not None:
            adapters.place(decoder.embedding)
        return decoder


def _guesser(
    draft: OpenedDraft | None,
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
    progress: Progress,
) -> Decoder | None:
    if draft is None:
        return None
    return _decoder(
        draft.checkpoint, settings, device, dtype, progress=progress, adapters=None, group=Group()
    )


def _kv(decoder: Decoder, capacity: Capacity, dtype: torch.dtype) -> KvTensors:
    return allocate(
        decoder.config,
        capacity.num_blocks,
        capacity.block_size,
        device=decoder.embedding.device,
        dtype=dtype,
    )


def _swapper(kv: KvTensors, settings: Settings) -> HostBlocks | None:
    num_slots = settings.swap_bytes // sum(tensor[0].nbytes for tensor in kv.all)
    return HostBlocks(kv, num_slots) if num_slots else None


def _runner(
    decoder: Decoder,
    kv: KvTensors,
    capacity: Capacity,
    sampler: Sampler,
    *,
    adapters: LoraAdapters | None = None,
    group: Group | None = None,
) -> ModelRunner:
    config, device, dtype = decoder.config, decoder.embedding.device, decoder.embedding.dtype
    tables = rotations(config, capacity.max_model_len).to(device)
    attention: AttentionBackend
    if device.type == "cpu":
        attention = cpu_attention(config, decoder.ops, kv, tables, dtype)
    else:
        attention = KernelAttention(config, kv, tables)
    return ModelRunner(
        decoder, attention, sampler, capacity.block_size, adapters=adapters, group=group
    )


def _info(
    located: Located,
    checkpoint: Checkpoint,
    capacity: Capacity,
    decoder: Decoder,
    settings: Settings,
) -> ModelInfo:
    config, device, dtype = checkpoint.config, decoder.embedding.device, decoder.embedding.dtype
    return ModelInfo(
        name=located.name,
        family=config.family,
        revision=located.revision,
        dtype=str(dtype).removeprefix("torch."),
        device=device_name(device),
        num_parameters=config.num_parameters,
        vocab_size=config.vocab_size,
        max_model_len=capacity.max_model_len,
        bos_token_id=checkpoint.bos_token_id,
        eos_token_ids=list(checkpoint.eos_token_ids),
        kv_bytes_per_token=memory.kv_bytes_per_token(config, memory.kv_dtype(settings, dtype)),
        weight_bytes=memory.weight_bytes(config, dtype, settings.quantization),
        engine_version=__version__,
        features=cost_features(device, settings, compiled=isinstance(decoder.ops, NativeOps)),
    )
