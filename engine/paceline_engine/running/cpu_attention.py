"""Attention on a CPU: the blocks of several rows are gathered, then torch's own attention runs.

A gather costs a third of the attention it feeds as long as it stays in the cache of the processor.
So decode rows are cut into groups of like lengths and of a bounded size, and one pair of buffers
serves all groups and all layers. What to gather is planned once per step.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Ops
from paceline_engine.running.inputs import Int64s, StepInputs

# A group's padded keys at most: 2 MiB for the embedded model, as for its values.
_GROUP_BLOCKS = 512
# A row joins a group if it is at least this share of the group's longest.
_LIKE_LENGTH = 0.75
# Queries of one chunk that are attended at once: what lies after them is not computed.
_QUERY_ROWS = 256


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    rows: Tensor  # [B]
    blocks: Tensor  # [B * P]
    mask: Tensor  # [B, 1, 1, P * block_size]: 0 where there is a key, else -inf


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Queries of one sequence that follow one another."""

    first: int  # token in the step
    end: int
    blocks: Tensor  # [P]
    num_keys: int
    mask: Tensor  # [queries, num_keys]


class CpuAttention:
    """The CPU's `AttentionBackend`."""

    def __init__(self, config: ModelConfig, ops: Ops, kv: KvTensors, cos_sin: Tensor) -> None:
        self.config = config
        self.ops = ops
        self.kv = kv
        self._cos_sin = cos_sin  # [max_len, head_size]
        self._gathered = [torch.empty(0), torch.empty(0)]

    def plan(self, inputs: StepInputs) -> "CpuStep":
        """Cut the step into groups of decode rows and chunks of queries."""
        block_size = self.kv.block_size
        angles = self._cos_sin[torch.from_numpy(inputs.positions)].unsqueeze(1)
        cos, sin = angles.chunk(2, dim=-1)
        return CpuStep(
            self,
            cos=torch.cat((cos, cos), dim=-1),
            sin=torch.cat((-sin, sin), dim=-1),
            slots=torch.from_numpy(inputs.slots),
            groups=[
                _decode_group(inputs, rows, block_size) for rows in _like_rows(inputs, block_size)
            ],
            chunks=_chunks(inputs, block_size),
        )

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copy blocks of a layer side by side, into buffers that the next gather overwrites."""
        out = []
        for which, cache in enumerate((self.kv.keys[layer], self.kv.values[layer])):
            shape = (blocks.numel(), *cache.shape[1:])
            size = blocks.numel() * cache[0].numel()
            if self._gathered[which].numel() < size:
                self._gathered[which] = torch.empty(size, dtype=cache.dtype)
            buffer = self._gathered[which][:size].view(shape)
            out.append(torch.index_select(cache, 0, blocks, out=buffer))
        return out[0], out[1]


@dataclass(frozen=True, slots=True)
class CpuStep:
    """The plan of one step; the layers run it one by one."""

    backend: CpuAttention
    cos: Tensor  # [T, 1, head_size]
    sin: Tensor  # as cos, the first half negated
    slots: Tensor  # [T]
    groups: list[_DecodeGroup]
    chunks: list[_Chunk]

    def attend(
        self, layer: int, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """See `paceline_engine.model.decoder.Attention`."""
        config, kv = self.backend.config, self.backend.kv
        heads = qkv.view(len(qkv), -1, config.head_size)
        qk, v = heads.split([config.num_q_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            qk = self._head_norms(qk, q_norm, k_norm)
        q, k = self._rotate(qk).split([config.num_q_heads, config.num_kv_heads], dim=1)
        kv.keys[layer].flatten(0, 1).index_copy_(0, self.slots, k)
        kv.values[layer].flatten(0, 1).index_copy_(0, self.slots, v)

        out = torch.empty_like(q)
        for group in self.groups:
            self._decode(layer, q, group, out)
        for chunk in self.chunks:
            self._prefill(layer, q, chunk, out)
        return out.flatten(1)

    def _head_norms(self, qk: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        config = self.backend.config
        q, k = qk.split([config.num_q_heads, config.num_kv_heads], dim=1)
        norm, eps = self.backend.ops.rms_norm, config.norm_eps
        return torch.cat((norm(q, q_norm, eps), norm(k, k_norm, eps)), dim=1)

    def _rotate(self, x: Tensor) -> Tensor:  # [T, heads, head_size]
        """Turn each pair (x[i], x[i + half]): x * cos + swapped halves * sin."""
        return torch.addcmul(x * self.cos, x.roll(x.shape[-1] // 2, dims=-1), self.sin)

    def _decode(self, layer: int, q: Tensor, group: _DecodeGroup, out: Tensor) -> None:
        size, num_kv_heads = q.shape[-1], self.backend.config.num_kv_heads
        rows = len(group.rows)
        k, v = (
            x.view(rows, -1, num_kv_heads, size).transpose(1, 2)
            for x in self.backend.gather(layer, group.blocks)
        )
        attended = functional.scaled_dot_product_attention(
            q[group.rows].unsqueeze(2), k, v, attn_mask=group.mask, enable_gqa=True
        )
        out.index_copy_(0, group.rows, attended.squeeze(2))

    def _prefill(self, layer: int, q: Tensor, chunk: _Chunk, out: Tensor) -> None:
        k, v = (
            x.flatten(0, 1)[: chunk.num_keys].transpose(0, 1).unsqueeze(0)
            for x in self.backend.gather(layer, chunk.blocks)
        )
        queries = q[chunk.first : chunk.end].transpose(0, 1).unsqueeze(0)
        attended = functional.scaled_dot_product_attention(
            queries, k, v, attn_mask=chunk.mask, enable_gqa=True
        )
        out[chunk.first : chunk.end] = attended.squeeze(0).transpose(0, 1)


def _like_rows(inputs: StepInputs, block_size: int) -> list[Int64s]:
    """Group the decode rows, longest first; no group holds more blocks than the buffers' share."""
    num_blocks = -(-inputs.context_lens[: inputs.num_decodes] // block_size)
    groups: list[list[int]] = []
    longest = 0
    for row in np.argsort(-num_blocks, kind="stable").tolist():
        blocks = int(num_blocks[row])
        fits = groups and (len(groups[-1]) + 1) * longest <= _GROUP_BLOCKS
        if not fits or blocks < _LIKE_LENGTH * longest:
            groups.append([])
            longest = blocks
        groups[-1].append(row)
    return [np.array(group, dtype=np.int64) for group in groups]


def _decode_group(inputs: StepInputs, rows: Int64s, block_size: int) -> _DecodeGroup:
    lengths = inputs.context_lens[rows]
    num_blocks = -(-int(lengths.max()) // block_size)
    is_key = np.arange(num_blocks * block_size) < lengths[:, None]
    mask = np.where(is_key, np.float32(0), np.float32(-inf))
    return _DecodeGroup(
        rows=torch.from_numpy(rows),
        blocks=torch.from_numpy(inputs.block_table[rows, :num_blocks].reshape(-1)),
        mask=torch.from_numpy(mask[:, None, None, :]),
    )


def _chunks(inputs: StepInputs, block_size: int) -> list[_Chunk]:
    chunks = []
    for sequence in range(inputs.num_decodes, len(inputs.context_lens)):
        first, end = (int(bound) for bound in inputs.cu_seqlens[sequence : sequence + 2])
        before = int(inputs.context_lens[sequence]) - (end - first)
        for start in range(first, end, _QUERY_ROWS):
            stop = min(start + _QUERY_ROWS, end)
            num_keys = before + stop - first
            positions = np.arange(num_keys - (stop - start), num_keys)
            is_key = np.arange(num_keys) <= positions[:, None]
            num_blocks = -(-num_keys // block_size)
            chunks.append(
                _Chunk(
                    first=start,
                    end=stop,
                    blocks=torch.from_numpy(inputs.block_table[sequence, :num_blocks].copy()),
                    num_keys=num_keys,
                    mask=torch.from_numpy(np.where(is_key, np.float32(0), np.float32(-inf))),
                )
            )
    return chunks
