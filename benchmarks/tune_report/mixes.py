"""Mixes of request lengths, log-normal with published means and medians.

Conversation and code follow the Azure LLM inference traces of 2023 (Azure Public Dataset:
prompt mean 1,155 and median 1,020, output 211 and 129 for conversation; 2,048, 1,469, 28 and 13
for code). Reasoning has short prompts and outputs beyond 1,500 tokens, so that KV memory binds.

Long prompts follow what is published of Mooncake's conversation and tool-and-agent traces (FAST'25:
mean prompts of some 12,000 and 8,600 tokens, outputs of 340 and 180, a third to three fifths of the
prompt tokens computed before). Growing conversations make their prefix hits: of a k-th turn all but
the last of k equal parts was computed before, and a conversation goes on with a chance of q after
each turn, so that turns are geometric and the mean hit is

    1 - (1 - q) / q * ln(1 / (1 - q))                   0.31 at q 0.5, 0.60 at 0.8, 0.90 at 0.975
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Shares = float | npt.NDArray[np.float64]


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
    goes_on: float = 0.0
    """q: the chance of another turn, by which conversations grow; 0 leaves `cached_share`."""
    long_share: float = 0.0
    """Share of the requests whose prompt is a long document instead."""
    long_prompt: tuple[int, int] = (8_000, 16_000)

    def draw(self, random: np.random.Generator, count: int) -> tuple[Ints, Ints, Ints]:
        """Draw prompt, output and cached tokens of `count` requests."""
        prompt = self.prompt.draw(random, count)
        output = self.output.draw(random, count)
        is_long = random.random(count) < self.long_share
        prompt = np.where(is_long, random.integers(*self.long_prompt, count), prompt)
        shares: Shares = self.cached_share
        if self.goes_on:
            shares = 1 - 1 / random.geometric(1 - self.goes_on, count)
        # Whole blocks of 16 are shared, and at least one token is computed.
        cached = np.minimum((shares * prompt).astype(np.int64), prompt - 1)
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

_LONG, _LONG_OUTPUT = Lengths(9000, 8000, 16_000, 4000), Lengths(340, 270, 1000, 100)
LONG = Mix("long", _LONG, _LONG_OUTPUT)
LONG_30 = Mix("long, 30 % cached", _LONG, _LONG_OUTPUT, goes_on=0.5)
LONG_60 = Mix("long, 60 % cached", _LONG, _LONG_OUTPUT, goes_on=0.8)
AGENTS = Mix("agents, 90 % cached", _LONG, Lengths(180, 150, 1000, 100), goes_on=0.975)
VERY_LONG = Mix("up to 64,000", Lengths(14_000, 10_000, 64_000, 4000), _LONG_OUTPUT, goes_on=0.5)
