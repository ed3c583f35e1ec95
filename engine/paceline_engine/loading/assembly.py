"""The parts of a model on one device: decoder, KV memory, runner, and what is told of them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline_engine import __version__
from paceline_engine.attention.backend import AttentionBackend, cpu_attention, keeps_pairs
from paceline_engine.attention.kernel_attention import KernelAttention
from paceline_engine.attention.prefill.choice import PrefillChoice, choose
from paceline_engine.attention.prefill.prompts import LayerCache
from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.stored_weights import UnsupportedKind, kept_bytes
from paceline_engine.checkpoint.uri import Located
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.step_tensors import RowTables
from paceline_engine.errors import UnsupportedModel
from paceline_engine.hardware.cores import CoreUse
from paceline_engine.hardware.placing import leave_core_for_places
from paceline_engine.kv_cache.host_blocks import HostBlocks
from paceline_engine.kv_cache.tensors import KvTensors, allocate
from paceline_engine.loading import memory
from paceline_engine.loading.dtype import DtypeChoice
from paceline_engine.loading.identity import cost_features, device_name
from paceline_engine.loading.weights import as_it_is, blocks_of, build_decoder
from paceline_engine.lora.slots import LoraAdapters
from paceline_engine.model.decoder import Decoder
from paceline_engine.model.group import Group
from paceline_engine.model.layers.rotary import rotations
from paceline_engine.model.ops import ops_for
from paceline_engine.model.sharding import shard_of
from paceline_engine.runner.cpu_tables import HostTables
from paceline_engine.runner.gpu_tables import DeviceTables
from paceline_engine.runner.input_batch import InputBatch
from paceline_engine.runner.model_runner import ModelRunner
from paceline_engine.sampling.sampler import Sampler
from paceline_engine.settings import Quantization, Settings
from paceline_kernels.cpu import NativeOps, op_library, take_memory
from paceline_wire import ModelInfo
from paceline_wire.limits import Capacity


@dataclass(frozen=True, slots=True)
class Assembly:
    """Makes each part as the settings ask for it, on one device and in one type."""

    settings: Settings
    device: torch.device
    choice: DtypeChoice
    cores: CoreUse
    """Those of this rank; on a GPU they say nothing."""

    @property
    def dtype(self) -> torch.dtype:
        """The type that both models compute in."""
        dtype: torch.dtype = getattr(torch, self.choice.dtype)
        return dtype

    def decoder(
        self,
        checkpoint: Checkpoint,
        progress: Callable[[float], None],
        *,
        quantization: Quantization,
        quantizes_head: bool = False,
        adapters: LoraAdapters | None = None,
        group: Group | None = None,
    ) -> Decoder:
        """Read the weights; raises `DoesNotFit` before the first of them is read."""
        group = group or Group()
        shard = shard_of(checkpoint.config, group.size)
        memory.require_weights_fit(
            shard,
            self.dtype,
            quantization,
            memory.measure(self.device),
            kept=self.kept_bytes(checkpoint, quantization, group.size),
        )
        with torch.inference_mode():
            decoder = build_decoder(
                checkpoint.config,
                checkpoint.tensors,
                ops_for(self.device, self.dtype),
                device=self.device,
                dtype=self.dtype,
                quantization=quantization,
                quantizes_head=quantizes_head,
                progress=progress,
                wrap=as_it_is if adapters is None else adapters.wrap,
                group=group,
            )
            if adapters is not None:
                embedding = decoder.embedding
                adapters.place(torch.empty(0, dtype=embedding.dtype, device=embedding.device))
            return decoder

    def kept_bytes(
        self, checkpoint: Checkpoint, quantization: Quantization, ranks: int = 1
    ) -> int | None:
        """Return what weights that stay as they are stored take; None where they do not stay so.

        Raises `BadSettings` where the model is no GGUF file, and `UnsupportedModel` where one of
        its tensors is of a kind that cannot stay.
        """
        if quantization != "as_stored":
            return None
        try:
            stored = blocks_of(checkpoint.tensors).stored
            return kept_bytes(stored, self.dtype.itemsize, ranks=ranks)
        except UnsupportedKind as problem:
            raise UnsupportedModel(f"{checkpoint.tensors.origin}: {problem}.") from problem

    def kv(self, decoder: Decoder, capacity: Capacity) -> KvTensors:
        """Take the memory of the cache."""
        config, block_size = decoder.config, capacity.block_size
        dtype = memory.kv_dtype(self.settings, self.dtype)
        kv = allocate(
            config,
            capacity.num_blocks,
            block_size,
            device=self.device,
            dtype=dtype,
            is_paired=keeps_pairs(config, decoder.ops, dtype, block_size),
        )
        if self.device.type == "cpu":
            take_memory(kv.all, leave_core_for_places)
        return kv

    def swapper(self, kv: KvTensors) -> HostBlocks | None:
        """Take the host memory for preempted requests, where the settings give any."""
        num_slots = self.settings.swap_bytes // sum(tensor[0].nbytes for tensor in kv.all)
        return HostBlocks(kv, num_slots) if num_slots else None

    def runner(
        self,
        decoder: Decoder,
        kv: KvTensors,
        capacity: Capacity,
        sampler: Sampler,
        *,
        salt: bytes,
        adapters: LoraAdapters | None = None,
        group: Group | None = None,
        tokens_stay: bool = True,
        prefill: PrefillChoice | None = None,
    ) -> ModelRunner:
        """Put together what computes the steps.

        `prefill`: who attends for prompts on a GPU, where that was chosen before.
        `salt`, random per engine run: makes the seeds of requests that bring none.
        `tokens_stay`: a request goes on with what this runner samples for it.
        """
        config, group = decoder.config, group or Group()
        angles = rotations(config, capacity.max_model_len).to(self.device)
        attention: AttentionBackend
        if self.device.type == "cpu":
            attention = cpu_attention(config, decoder.ops, kv, angles, self.dtype)
        else:
            prefill = prefill or self.prefill(config, kv, capacity)
            attention = KernelAttention(config, kv, angles, prefill)
        num_rows, block_size = capacity.max_batch_size, capacity.block_size
        num_columns = -(-capacity.max_model_len // block_size)
        input_batch = InputBatch(
            num_rows,
            num_columns,
            block_size,
            config.vocab_size,
            salt=None if self.device.type == "cpu" else salt,
            tokens_stay=tokens_stay,
        )
        tables: RowTables
        if self.device.type == "cpu":
            tables = HostTables(num_rows, num_columns, block_size)
        else:
            num_tokens = max(capacity.max_token_budget, num_rows)
            tables = DeviceTables(num_rows, num_columns, block_size, num_tokens, self.device)
        return ModelRunner(
            decoder, attention, sampler, input_batch, tables, adapters=adapters, group=group
        )

    def prefill(self, config: ModelConfig, kv: KvTensors, capacity: Capacity) -> PrefillChoice:
        """Choose who attends for prompts, as over a cache of the capacity's blocks."""
        keys, values = (
            each[:1].expand(capacity.num_blocks, *each.shape[1:])
            for each in (kv.keys[0], kv.values[0])
        )
        cache = LayerCache(keys, values, kv.exponents(0))
        longest = min(capacity.max_token_budget, capacity.max_model_len)
        with torch.inference_mode():
            return choose(
                self.settings.prefill_attention,
                config,
                cache,
                longest,
                capacity.max_model_len,
            )

    def info(
        self,
        located: Located,
        checkpoint: Checkpoint,
        capacity: Capacity,
        decoder: Decoder,
        quantization: Quantization,
    ) -> ModelInfo:
        """Tell what the sidecar must know of the model."""
        settings, config = self.settings, checkpoint.config
        stored = memory.kv_dtype(settings, self.dtype)
        is_compiled = isinstance(decoder.ops, NativeOps)
        return ModelInfo(
            name=located.name,
            family=config.family,
            revision=located.revision,
            dtype=self.choice.dtype,
            device=device_name(self.device),
            num_parameters=config.num_parameters,
            vocab_size=config.vocab_size,
            max_model_len=capacity.max_model_len,
            bos_token_id=checkpoint.bos_token_id,
            eos_token_ids=list(checkpoint.eos_token_ids),
            kv_bytes_per_token=memory.kv_bytes_per_token(config, stored),
            weight_bytes=memory.weight_bytes(
                config, self.dtype, quantization, kept=self.kept_bytes(checkpoint, quantization)
            ),
            max_loras=settings.max_loras,
            engine_version=__version__,
            features=cost_features(self.device, settings, compiled=is_compiled),
            dtype_reason=self.choice.reason,
            cores=self.cores.sentence if self.device.type == "cpu" else "",
            ops=str(op_library()) if self.device.type == "cpu" else "",
        )
