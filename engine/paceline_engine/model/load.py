"""Loads a model: find it, read its weights, take the KV memory, run a few steps to warm up."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from paceline_engine import __version__
from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.checkpoint.uri import Located, Places, locate
from paceline_engine.errors import BadSettings
from paceline_engine.kv_cache.tensors import KvTensors, allocate
from paceline_engine.limits import Capacity
from paceline_engine.model import memory
from paceline_engine.model.adapters import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.identity import cost_features, device_name
from paceline_engine.model.layers.rotary import rotations
from paceline_engine.model.weights import as_it_is, build_decoder
from paceline_engine.running.attention import AttentionBackend
from paceline_engine.running.cpu_attention import CpuAttention
from paceline_engine.running.host_blocks import HostBlocks
from paceline_engine.running.kernel_attention import KernelAttention
from paceline_engine.running.ops import ops_for
from paceline_engine.running.runner import ModelRunner
from paceline_engine.running.warm_up import warm_up
from paceline_engine.sampling.sampler import Sampler
from paceline_engine.settings import Settings
from paceline_engine.wire import ModelInfo

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

    def write_tokenizer(self, run_dir: Path) -> None:
        """Put the tokenizer's files where the sidecar reads them."""
        self.tokenizer.write(run_dir)


def load_model(settings: Settings, progress: Progress) -> LoadedModel:
    """Load what `settings` name, or raise the `EngineError` that says why it cannot be had."""
    progress("fetching", 0.0)
    located = locate(settings.model_uri, settings.model_revision, _places(settings))
    progress("reading", 0.0)
    checkpoint = open_checkpoint(located.path)
    device = _device(settings)
    dtype = _dtype(settings, device)

    loras = settings.max_loras
    adapters = LoraAdapters(loras, settings.max_lora_rank) if loras else None
    decoder = _decoder(checkpoint, settings, device, dtype, progress=progress, adapters=adapters)
    step_bytes = memory.peak_step_bytes(checkpoint.config, settings.max_token_budget, dtype)
    kv_bytes = memory.kv_bytes(settings, device, memory.measure(device), step_bytes)
    capacity = memory.capacity(settings, checkpoint.config, dtype, device, kv_bytes)
    kv = _kv(decoder, capacity)
    runner = _runner(decoder, kv, capacity, checkpoint.eos_token_ids, adapters)
    progress("warming up", 0.0)
    warm_up(runner, capacity)
    progress("warming up", 1.0)
    info = _info(located, checkpoint, capacity, decoder.embedding, settings)
    swapper = _swapper(kv, settings, dtype, decoder)
    return LoadedModel(runner, info, capacity, checkpoint.tokenizer, swapper, adapters)


def _places(settings: Settings) -> Places:
    hub = Hub(settings.cache_dir, settings.hf_token)
    return Places(settings.models_dir, settings.model_mount, hub)


def _device(settings: Settings) -> torch.device:
    has_gpu = torch.cuda.is_available()
    if settings.device == "cuda" and not has_gpu:
        raise BadSettings("PACELINE_ENGINE_DEVICE is cuda, but torch finds no CUDA device.")
    if settings.device == "cuda" or (settings.device == "auto" and has_gpu):
        return torch.device("cuda", 0)
    torch.set_num_threads(settings.threads or len(os.sched_getaffinity(0)))
    return torch.device("cpu")


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
) -> Decoder:
    config, quantization = checkpoint.config, settings.quantization
    memory.require_weights_fit(config, dtype, quantization, memory.measure(device))
    with torch.inference_mode():
        decoder = build_decoder(
            config,
            checkpoint.tensors,
            ops_for(device),
            device=device,
            dtype=dtype,
            quantization=quantization,
            progress=lambda fraction: progress("loading weights", fraction),
            wrap=as_it_is if adapters is None else adapters.wrap,
        )
        if adapters is not None:
            adapters.place(decoder.embedding)
        return decoder


def _kv(decoder: Decoder, capacity: Capacity) -> KvTensors:
    return allocate(
        decoder.config,
        capacity.num_blocks,
        capacity.block_size,
        device=decoder.embedding.device,
        dtype=decoder.embedding.dtype,
    )


def _swapper(
    kv: KvTensors, settings: Settings, dtype: torch.dtype, decoder: Decoder
) -> HostBlocks | None:
    block_bytes = decoder.config.kv_bytes_per_token(dtype.itemsize) * settings.block_size
    num_slots = settings.swap_bytes // block_bytes
    return HostBlocks(kv, num_slots) if num_slots else None


def _runner(
    decoder: Decoder,
    kv: KvTensors,
    capacity: Capacity,
    eos_token_ids: tuple[int, ...],
    adapters: LoraAdapters | None,
) -> ModelRunner:
    config, device, dtype = decoder.config, decoder.embedding.device, decoder.embedding.dtype
    tables = rotations(config, capacity.max_model_len).to(device)
    attention: AttentionBackend
    if device.type == "cpu":
        attention = CpuAttention(config, decoder.ops, kv, tables.to(dtype))
    else:
        attention = KernelAttention(config, kv, tables)
    sampler = Sampler(eos_token_ids, salt=os.urandom(16))
    return ModelRunner(decoder, attention, sampler, capacity.block_size, adapters)


def _info(
    located: Located,
    checkpoint: Checkpoint,
    capacity: Capacity,
    weight: torch.Tensor,
    settings: Settings,
) -> ModelInfo:
    config, device, dtype = checkpoint.config, weight.device, weight.dtype
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
        kv_bytes_per_token=config.kv_bytes_per_token(dtype.itemsize),
        weight_bytes=memory.weight_bytes(config, dtype, settings.quantization),
        engine_version=__version__,
        features=cost_features(device, settings),
    )
