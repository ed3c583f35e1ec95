"""Attention on a CPU: the blocks of several rows are gathered, then torch's own attention runs.

A gather costs a third of the attention it feeds as long as it stays in the cache of the processor.
So decode rows are cut into groups of like lengths and of a bounded size, and one pair of buffers
serves all groups and all layers. What to gather is planned once per step, and once more for the
layers that see only a window: they gather the blocks within it.
"""

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from paceline_engine.attention.chunks import Prompt, attend_prompt, attended, prompts_of
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.core.step_tensors import Int32s, Int64s, StepArrays, StepTensors
from paceline_engine.kv_cache.tensors import KvTensors
from paceline_engine.model.decoder import Ops
from paceline_engine.model.layers.rotary import Rotations

# A group's padded keys at most: 2 MiB for the embedded model, as for its values.
_GROUP_BLOCKS = 512
# A row joins a group if it is at least this share of the group's longest.
_LIKE_LENGTH = 0.75


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    rows: Tensor  # [B]
    blocks: Tensor  # [B * P]
    mask: Tensor  # [B, 1, 1, P * block_size]: 0 where there is a key, else -inf


@dataclass(frozen=True, slots=True)
class _View:
    """What the layers of one window see."""

    cos: Tensor  # [T, 1, head_size]
    sin: Tensor  # as cos, the first half negated
    groups: list[_DecodeGroup]
    prompts: list[Prompt]


class CpuAttention:
    """The CPU's `AttentionBackend`."""

    def __init__(self, config: ModelConfig, ops: Ops, kv: KvTensors, rotations: Rotations) -> None:
        self.config = config
        self.ops = ops
        self.kv = kv
        self._rotations = rotations
        self._gathered = [torch.empty(0), torch.empty(0)]

    def plan(self, step: StepTensors) -> "CpuStep":
        """Cut the step into groups of decode rows and chunks of queries."""
        arrays = StepArrays.of(step)
        views = {window: self._view(arrays, window) for window in set(self.config.windows)}
        return CpuStep(self, slots=step.slots, views=views)

    def _view(self, step: StepArrays, window: int | None) -> _View:
        block_size = self.kv.block_size
        angles = self._rotations.of(window)[torch.from_numpy(step.positions)].unsqueeze(1)
        cos, sin = angles.chunk(2, dim=-1)
        return _View(
            cos=torch.cat((cos, cos), dim=-1),
            sin=torch.cat((-sin, sin), dim=-1),
            groups=[
                _decode_group(step, rows, block_size, window)
                for rows in _like_rows(step, block_size, window)
            ],
            prompts=prompts_of(step, block_size, window),
        )

    def gather(self, layer: int, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Copy blocks of a layer side by side, into buffers that the next gather overwrites."""
        if self.kv.key_exponents:
            return self.kv.gathered(layer, blocks, self._rotations.everywhere.dtype)
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
    slots: Tensor  # [T]
    views: dict[int | None, _View]  # by window

    def attend(
        self, layer: int, qkv: Tensor, q_norm: Tensor | None, k_norm: Tensor | None
    ) -> Tensor:
        """See `paceline_engine.model.decoder.Attention`."""
        config, kv = self.backend.config, self.backend.kv
        view = self.views[config.windows[layer]]
        heads = qkv.view(len(qkv), -1, config.head_size)
        qk, v = heads.split([config.num_q_heads + config.num_kv_heads, config.num_kv_heads], dim=1)
        if q_norm is not None and k_norm is not None:
            qk = self._head_norms(qk, q_norm, k_norm)
        q, k = _rotate(qk, view).split([config.num_q_heads, config.num_kv_heads], dim=1)
        kv.store(layer, self.slots, k, v)

        out = torch.empty_like(q)
        for group in view.groups:
            self._decode(layer, q, group, out)
        for prompt in view.prompts:
            attend_prompt(config, prompt, q, self.backend.gather(layer, prompt.blocks), out)
        return out.flatten(1)

    def _head_norms(self, qk: Tensor, q_norm: Tensor, k_norm: Tensor) -> Tensor:
        config = self.backend.config
        q, k = qk.split([config.num_q_heads, config.num_kv_heads], dim=1)
        norm, eps = self.backend.ops.rms_norm, config.norm_eps
        return torch.cat((norm(q, q_norm, eps), norm(k, k_norm, eps)), dim=1)

    def _decode(self, layer: int, q: Tensor, group: _DecodeGroup, out: Tensor) -> None:
        config, rows = self.backend.config, len(group.rows)
        k, v = (
            x.view(rows, -1, config.num_kv_heads, config.head_size).transpose(1, 2)
            for x in self.backend.gather(layer, group.blocks)
        )
        seen = attended(config, q[group.rows].unsqueeze(2), k, v, group.mask)
        out.index_copy_(0, group.rows, seen.squeeze(2))


def _rotate(x: Tensor, view: _View) -> Tensor:  # [T, heads, head_size]
    """Turn each pair (x[i], x[i + half]): x * cos + swapped halves * sin."""
    return torch.addcmul(x * view.cos, x.roll(x.shape[-1] // 2, dims=-1), view.sin)


def _first_blocks(first_keys: Int32s, block_size: int) -> Int32s:
    """Which block of a sequence holds each first key."""
    first_blocks: Int32s = np.maximum(first_keys, 0) // block_size
    return first_blocks


def _like_rows(step: StepArrays, block_size: int, window: int | None) -> list[Int64s]:
    """Group the decode rows, longest first; no group holds more blocks than the buffers' share."""
    lengths = step.context_lens[: step.num_decodes]
    num_blocks = -(-lengths // block_size)
    if window is not None:
        num_blocks -= _first_blocks(lengths - window, block_size)
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


def _decode_group(
    step: StepArrays, rows: Int64s, block_size: int, window: int | None
) -> _DecodeGroup:
    lengths = step.context_lens[rows]
    if window is None:
        num_blocks = -(-int(lengths.max()) // block_size)
        is_key = np.arange(num_blocks * block_size) < lengths[:, None]
        blocks = step.block_table[rows, :num_blocks]
    else:
        first_blocks = _first_blocks(lengths - window, block_size)
        num_blocks = int((-(-lengths // block_size) - first_blocks).max())
        keys = first_blocks[:, None] * block_size + np.arange(num_blocks * block_size)
        is_key = (keys < lengths[:, None]) & (keys >= (lengths - window)[:, None])
        columns = first_blocks[:, None] + np.arange(num_blocks)
        # A row with fewer blocks repeats a last one, under the mask.
        columns = np.minimum(columns, step.block_table.shape[1] - 1)
        blocks = step.block_table[rows[:, None], columns]
    mask = np.where(is_key, np.float32(0), np.float32(-inf))
    return _DecodeGroup(
        rows=torch.from_numpy(rows),
        blocks=torch.from_numpy(blocks.reshape(-1)),
        mask=torch.from_numpy(mask[:, None, None, :]),
    )
