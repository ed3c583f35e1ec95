"""Attention on a CPU with the compiled ops, which read the blocks where they lie."""

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.layers.rotary import Rotations
from paceline_kernels.checks import Exponents
from paceline_kernels.cpu import LANES, MAX_GROUP, MAX_HEADS, NativeOps, can_pair


def serves(config: ModelConfig, dtype: torch.dtype, block_size: int) -> bool:
    """Tell whether the compiled attention serves such heads in this type; it has no soft cap."""
    if config.num_q_heads > MAX_HEADS or config.attention_softcap is not None:
        return False
    group = config.num_q_heads // config.num_kv_heads
    if dtype == torch.bfloat16:
        return can_pair(config.head_size, block_size, group)
    return group <= MAX_GROUP and config.head_size % LANES == 0


class NativeAttention:
    """An `AttentionBackend` in float32, or in bfloat16 over a cache of pairs or of FP8."""

    def __init__(
        self,
        config: ModelConfig,
        native: NativeOps,
        kv: KvTensors,
        tables: Rotations,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config
        self.native = native
        self.kv = kv
        self.tables = tables
        self.score_scale = config.score_scale
        self.reads_codes = dtype == torch.bfloat16
        """Attention of prompts reads FP8 as it is."""
        self.widens_prompts = bool(kv.key_exponents) and not self.reads_codes
        """Blocks that prompts read are copied as floats for each layer."""
        self.layers = [
            _Layer(keys, values, kv.exponents(number), tables.of(window), window)
            for number, (keys, values, window) in enumerate(
                zip(kv.keys, kv.values, config.windows, strict=True)
            )
        ]

    def plan(self, step: StepTensors) -> "NativeStep":
        """Keep the step's tensors, which every layer reads."""
        prompts = step.block_table[step.num_decodes :]
        widened = None
        if self.widens_prompts:
            widened = _widened(prompts, step.context_lens[step.num_decodes :], self.kv)
        table = prompts if widened is None else widened.table
        return NativeStep(self, step, table, widened)


@dataclass(frozen=True, slots=True)
class _Layer:
    """What attention needs of one layer; the same in every step."""

    keys: Tensor
    values: Tensor
    exponents: Exponents
    cos_sin: Tensor  # [max_len, head_size]
    window: int | None


@dataclass(frozen=True, slots=True)
class _Widened:
    """The blocks that prompts read, as floats: the products in float32 do not read FP8."""

    blocks: Tensor  # [N]: where each lies in the cache
    table: Tensor  # int32 [S, P]: which of them each sequence holds


def _widened(table: Tensor, context_lens: Tensor, kv: KvTensors) -> _Widened:
    counts = -(-context_lens // kv.block_size)
    held = torch.arange(table.shape[1]) < counts[:, None]
    blocks = table[held]
    places = torch.zeros_like(table)
    places[held] = torch.arange(len(blocks), dtype=torch.int32)
    return _Widened(blocks, places)


@dataclass(frozen=True, slots=True)
class NativeStep:
    """The plan of one step; the layers run it one by one."""

    backend: NativeAttention
    step: StepTensors
    prompt_table: Tensor  # [S - num_decodes, P]
    widened: _Widened | None
    """Given where the cache is FP8 and the queries are float32."""

    def attend(
        self, layer: int, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """See `paceline_engine.model.decoder.Attention`; q is rotated in place."""
        config, native, step = self.backend.config, self.backend.native, self.step
        own = self.backend.layers[layer]
        keys, values = own.keys, own.values
        norms = None if q_norm is None or k_norm is None else (q_norm, k_norm)
        native.rope_and_store_kv(
            qkv=qkv,
            positions=step.positions,
            slots=step.slots,
            cos_sin=own.cos_sin,
            norms=norms,
            eps=config.norm_eps,
            k_cache=keys,
            v_cache=values,
            exponents=own.exponents,
        )
        q_size = config.num_q_heads * config.head_size
        out = qkv.new_empty(len(qkv), q_size)
        if step.num_decodes:
            native.paged_decode_attention(
                qkv=qkv,
                num_q_heads=config.num_q_heads,
                k_cache=keys,
                v_cache=values,
                exponents=own.exponents,
                block_table=step.block_table,
                context_lens=step.context_lens,
                rows=step.num_decodes,
                out=out,
                scale=self.backend.score_scale,
                window=own.window,
            )
        if step.num_decodes < len(step.context_lens):
            exponents = own.exponents
            if self.widened is not None:
                keys, values = self.backend.kv.gathered(layer, self.widened.blocks, qkv.dtype)
                exponents = None
            native.paged_prompt_attention(
                qkv=qkv,
                num_q_heads=config.num_q_heads,
                k_cache=keys,
                v_cache=values,
                exponents=exponents,
                block_table=self.prompt_table,
                cu_seqlens=step.bounds[step.num_decodes :],
                context_lens=step.context_lens[step.num_decodes :],
                out=out,
                scale=self.backend.score_scale,
                window=own.window,
            )
        return out
