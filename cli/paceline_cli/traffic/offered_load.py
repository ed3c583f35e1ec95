"""An offered load: when requests arrive and how long they are, planned purely from a seed.

Requests come in blocks of `block_s` seconds. Each block holds exactly its share of requests and
the whole spread of lengths, in random order, so two phases of a run carry the same load and can
be compared, while arrivals within a block are as bursty as `cv` says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import NormalDist

CHARS_PER_TOKEN = 4
"""About so many in English text, for the tokenizers that we serve."""


@dataclass(frozen=True, slots=True)
class TokenLengths:
    """Log-normal token counts, cut to [min, max]."""

    median: float
    sigma: float
    """Standard deviation of the logarithm; 0 gives every request the median."""
    min: int
    max: int

    def quantile(self, share: float) -> int:
        """The length that `share` of the requests do not exceed."""
        length = self.median * exp(self.sigma * NormalDist().inv_cdf(share))
        return round(min(max(length, self.min), self.max))

    def spread(self, count: int) -> list[int]:
        """`count` lengths that together show the whole distribution, ascending."""
        return [self.quantile((index + 0.5) / count) for index in range(count)]

    def mean(self) -> float:
        """Mean length after the cut, tokens."""
        return sum(self.spread(1000)) / 1000


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """An offered load."""

    rate_rps: float
    cv: float
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson, 2.5 is bursty."""
    prompt_tokens: TokenLengths
    output_tokens: TokenLengths
    block_s: float = 30.0


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request before it is sent."""

    at_s: float
    """Seconds after the start."""
    prompt: str
    max_tokens: int


def plan(
    workload: OfferedLoad, corpus: str, *, duration_s: float, seed: int
) -> tuple[PlannedRequest, ...]:
    """All requests of the first `duration_s` seconds, in order of arrival."""
    random = Random(seed)  # noqa: S311 - a load, not a secret
    requests: list[PlannedRequest] = []
    start_s = 0.0
    while start_s < duration_s:
        count = max(1, round(workload.rate_rps * workload.block_s))
        prompts = workload.prompt_tokens.spread(count)
        outputs = workload.output_tokens.spread(count)
        random.shuffle(prompts)
        random.shuffle(outputs)
        offsets = arrivals(count, cv=workload.cv, duration_s=workload.block_s, random=random)
        requests += [
            PlannedRequest(start_s + offset, excerpt(corpus, tokens, random), output)
            for offset, tokens, output in zip(offsets, prompts, outputs, strict=True)
        ]
        start_s += workload.block_s
    return tuple(request for request in requests if request.at_s < duration_s)


def arrivals(count: int, *, cv: float, duration_s: float, random: Random) -> Sequence[float]:
    """`count` arrival times in [0, duration_s): gamma gaps, scaled to fill the time exactly."""
    if cv == 0:
        return [duration_s * (index + 0.5) / count for index in range(count)]
    shape = 1 / cv**2
    # One gap more than arrivals: the last lies between the last arrival and the end.
    gaps = [random.gammavariate(shape, 1.0) for _ in range(count + 1)]
    scale = duration_s / sum(gaps)
    times: list[float] = []
    now_s = 0.0
    for gap in gaps[:-1]:
        now_s += gap * scale
        times.append(min(now_s, duration_s))
    return times


def excerpt(corpus: str, tokens: int, random: Random) -> str:
    """A piece of `corpus` of about `tokens` tokens, from a random place, whole words only."""
    length = tokens * CHARS_PER_TOKEN
    if length >= len(corpus):
        raise ValueError(f"a prompt of {tokens} tokens needs a corpus of more than {length} chars")
    start = random.randrange(len(corpus) - length)
    words = corpus[start : start + length].split()
    return " ".join(words[1:-1] or words)
