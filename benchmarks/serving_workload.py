"""The workload that every engine gets, and what is measured."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

VOCAB = 49_152
FIRST_PLAIN_TOKEN = 17  # those before are special


@dataclass(frozen=True)
class Workload:
    """The requests that every engine gets."""

    requests: int = 64
    concurrency: int = 16
    shortest: int = 32
    longest: int = 512
    output_tokens: int = 64

    def prompts(self, seed: int) -> list[list[int]]:
        """Random tokens: no engine can gain from shared prefixes."""
        source = random.Random(seed)
        lengths = [source.randint(self.shortest, self.longest) for _ in range(self.requests)]
        return [[source.randrange(FIRST_PLAIN_TOKEN, VOCAB) for _ in range(n)] for n in lengths]


@dataclass(frozen=True)
class Timeline:
    """When one request was sent, and when each of its tokens came."""

    sent: float
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """One run of one engine."""

    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float


def figures(timelines: Sequence[Timeline], workload: Workload) -> Figures:
    """Reduce the timelines to the reported figures."""
    assert len(timelines) == workload.requests
    assert all(len(line.tokens) == workload.output_tokens for line in timelines)
    start = min(line.sent for line in timelines)
    end = max(line.tokens[-1] for line in timelines)
    first = [1e3 * (line.tokens[0] - line.sent) for line in timelines]
    gaps = [
        1e3 * (line.tokens[-1] - line.tokens[0]) / (workload.output_tokens - 1)
        for line in timelines
    ]
    total = workload.requests * workload.output_tokens
    return Figures(
        output_tokens_per_s=total / (end - start),
        ttft_p50_ms=float(np.percentile(first, 50)),
        ttft_p99_ms=float(np.percentile(first, 99)),
        tpot_p50_ms=float(np.percentile(gaps, 50)),
        tpot_p99_ms=float(np.percentile(gaps, 99)),
    )


Run = Callable[[list[list[int]], Workload], list[Timeline]]
