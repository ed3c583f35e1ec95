"""The tables of rotations: cosines and sines of every position."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.core.model_config import ModelConfig, Rope


@dataclass(frozen=True, slots=True)
class Rotations:
    """One table, or two where the layers with a window rotate by a base of their own."""

    everywhere: Tensor  # [max_len, head_size]
    windowed: Tensor  # the same, of layers with a window

    def to(self, device: torch.device) -> "Rotations":
        """Copy the tables to a device."""
        everywhere = self.everywhere.to(device)
        is_one = self.windowed is self.everywhere
        return Rotations(everywhere, everywhere if is_one else self.windowed.to(device))

    def of(self, window: int | None) -> Tensor:  # [max_len, head_size]
        """Return the table of a layer with this window."""
        return self.everywhere if window is None else self.windowed


def rotations(config: ModelConfig, max_len: int) -> Rotations:
    """Make the tables for every position up to `max_len`; float32."""
    everywhere = cos_sin_table(config.rope, config.head_size, max_len)
    if config.window_rope is None:
        return Rotations(everywhere, everywhere)
    return Rotations(everywhere, cos_sin_table(config.window_rope, config.head_size, max_len))


def cos_sin_table(rope: Rope, head_size: int, max_len: int) -> Tensor:  # [max_len, head_size]
    """Return cosines in the first half of a row, sines in the second; float32."""
    exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
    frequencies = _scaled(1.0 / (rope.theta**exponents), rope)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies)
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def _scaled(frequencies: Tensor, rope: Rope) -> Tensor:  # [head_size / 2]
    if rope.divisors:
        return frequencies / torch.tensor(rope.divisors)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(frequencies, rope)
    return frequencies


def _llama3(frequencies: Tensor, rope: Rope) -> Tensor:
    """Slow the long waves down by the factor, leave the short ones, blend in between."""
    turns = rope.original_max_len * frequencies / (2 * math.pi)
    spread = rope.high_freq_factor - rope.low_freq_factor
    keep = ((turns - rope.low_freq_factor) / spread).clamp(0.0, 1.0)
    return keep * frequencies + (1.0 - keep) * frequencies / rope.factor
