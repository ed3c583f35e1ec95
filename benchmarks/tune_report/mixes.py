"""Mixes of request lengths, log-normal with published means and medians.

Conversation and code follow the Azure LLM inference traces of 2023 (Azure Public Dataset:
prompt mean 1,155 and median 1,020, output 211 and 129 for conversation; 2,048, 1,469, 28 and 13
for code). Reasoning has short prompts and outputs beyond 1,500 tokens, so that KV memory binds.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal token counts, cut at both ends."""

    mean: float
    median: float
    most: int
    least: int = 1

    def draw(self, random: np.random.Generator, count: int) -> Ints:
        """Draw `count` lengths."""
        sigma = math.sqrt(2 * math.log(self.mean / self.median))
        values = random.lognormal(math.log(self.median), sigma, count)
        return np.clip(np.rint(values), self.least, self.most).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Mix:
    """Prompt and output lengths, and the share of each prompt that the prefix cache holds."""

    name: str
    prompt: Lengths
    output: Lengths
    cached_share: float = 0.0
    long_share: float = 0.0
    """Share of the requests whose prompt is a long document instead."""
    long_prompt: tuple[int, int] = (8_000, 16_000)

    def draw(self, random: np.random.Generator, count: int) -> tuple[Ints, Ints, Ints]:
        """Draw prompt, output and cached tokens of `count` requests."""
        prompt = self.prompt.draw(random, count)
        output = self.output.draw(random, count)
        is_long = random.random(count) < self.long_share
        prompt = np.where(is_long, random.integers(*self.long_prompt, count), prompt)
        # Whole blocks of 16 are shared, and at least one token is computed.
        cached = np.minimum((self.cached_share * prompt).astype(np.int64), prompt - 1)
        return prompt, output, cached // 16 * 16


CONVERSATION = Mix("conversation", Lengths(1155, 1020, 4200, 16), Lengths(211, 129, 1000, 2))
CODE = Mix("code", Lengths(2048, 1469, 7500, 16), Lengths(28, 13, 500, 2))
REASONING = Mix("reasoning", Lengths(300, 200, 2000, 16), Lengths(1500, 1250, 4000, 200))
CACHED = Mix("cached", Lengths(1155, 1020, 4200, 16), Lengths(211, 129, 1000, 2), cached_share=0.8)
HEAVY_TAIL = Mix(
    "heavy tail", Lengths(1155, 1020, 4200, 16), Lengths(211, 129, 1000, 2), long_share=0.005
)
SHORT = Mix("short", Lengths(60, 50, 200, 8), Lengths(40, 32, 120, 2))
"""For a small model on a CPU."""
