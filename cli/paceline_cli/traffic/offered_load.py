"""An offered load: when requests arrive and how long they are, planned purely from a seed.

Requests come in blocks of `block_s` seconds. Each block holds exactly its share of requests and
the whole spread of lengths, in random order, so two phases of a run carry the same load and can
be compared, while arrivals within a block are as bursty as `cv` says. A trace keeps its own gaps
and lengths, a burst comes all at once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import NormalDist

from paceline_cli.traffic.arrivals import Burst, arrivals, burst_arrivals
from paceline_cli.traffic.prompts import SharedPrefix, beginnings, long_excerpt
from paceline_cli.traffic.traces import TracedRequest


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
    """Conversations a second where they have several turns."""
    cv: float
    """Coefficient of variation of the gaps between arrivals: 1 is Poisson, 2.5 is bursty."""
    prompt_tokens: TokenLengths
    output_tokens: TokenLengths
    block_s: float = 30.0
    burst: Burst | None = None
    """Instead of `rate_rps` and `cv`."""
    trace: tuple[TracedRequest, ...] = ()
    """Arrivals and lengths as they came, stretched to `rate_rps`, instead of all above."""
    lengths: tuple[TracedRequest, ...] = ()
    """Pairs of lengths to draw from, instead of the distributions."""
    shared_prefix: SharedPrefix | None = None
    """It is a part of the prompt's length where that is longer."""
    turns: int = 1
    """Requests of one conversation: each says all that was said before."""
    think_s: float = 2.0
    """From an answer to the next turn."""
    cancelled: float = 0.0
    """Share of the requests whose client leaves while it is answered."""
    longest_prompt: int | None = None
    """Tokens; longer ones are cut."""
    longest_output: int | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """What is said after an answer."""

    prompt: str
    max_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request before it is sent."""

    at_s: float
    """Seconds after the start."""
    prompt: str
    max_tokens: int
    cancel_after: int | None = None
    """The client leaves at this piece of the answer."""
    turns: tuple[Turn, ...] = ()
    """What follows in the same conversation."""


def plan(
    workload: OfferedLoad, corpus: str, *, duration_s: float, seed: int
) -> tuple[PlannedRequest, ...]:
    """All requests of the first `duration_s` seconds, in order of arrival."""
    random = Random(seed)  # noqa: S311 - a load, not a secret
    shared = beginnings(corpus, workload.shared_prefix) if workload.shared_prefix else ()
    planned = (
        _request(workload, corpus, due, shared, random)
        for due in _due(workload, duration_s, random)
    )
    return tuple(request for request in planned if request.at_s < duration_s)


def _due(workload: OfferedLoad, duration_s: float, random: Random) -> Iterator[TracedRequest]:
    """When each request comes and how long it is, before it has words."""
    if workload.trace:
        yield from stretched(workload.trace, workload.rate_rps, duration_s)
    elif workload.burst is not None:
        times = burst_arrivals(workload.burst, duration_s=duration_s)
        yield from _with_lengths(workload, times, random)
    else:
        start_s = 0.0
        while start_s < duration_s:
            count = max(1, round(workload.rate_rps * workload.block_s))
            yield from _with_lengths(workload, count, random, start_s)
            start_s += workload.block_s


def _with_lengths(
    workload: OfferedLoad, times: Sequence[float] | int, random: Random, start_s: float = 0.0
) -> Iterator[TracedRequest]:
    """Give the whole spread of lengths to the arrivals, or to that many of the block's own."""
    count = times if isinstance(times, int) else len(times)
    if workload.lengths:
        pairs = [random.choice(workload.lengths) for _ in range(count)]
        prompts, outputs = [one.prompt for one in pairs], [one.output for one in pairs]
    else:
        prompts, outputs = (
            workload.prompt_tokens.spread(count),
            workload.output_tokens.spread(count),
        )
        random.shuffle(prompts)
        random.shuffle(outputs)
    if isinstance(times, int):
        times = arrivals(count, cv=workload.cv, duration_s=workload.block_s, random=random)
    for at_s, prompt, output in zip(times, prompts, outputs, strict=True):
        yield TracedRequest(start_s + at_s, prompt, output)


def stretched(
    trace: Sequence[TracedRequest], rate_rps: float, duration_s: float
) -> Iterator[TracedRequest]:
    """The trace's requests at another mean rate, over again where it is shorter than needed."""
    period_s = len(trace) / rate_rps
    factor = period_s / (trace[-1].at_s * len(trace) / (len(trace) - 1))
    start_s = 0.0
    while start_s < duration_s:
        for one in trace:
            yield TracedRequest(start_s + one.at_s * factor, one.prompt, one.output)
        start_s += period_s


def _request(
    workload: OfferedLoad,
    corpus: str,
    due: TracedRequest,
    shared: Sequence[str],
    random: Random,
) -> PlannedRequest:
    prompt_tokens = min(due.prompt, workload.longest_prompt or due.prompt)
    max_tokens = min(due.output, workload.longest_output or due.output)
    if workload.shared_prefix is not None:
        own = max(1, prompt_tokens - workload.shared_prefix.tokens)
        prompt = f"{random.choice(shared)} {long_excerpt(corpus, own, random)}"
    else:
        prompt = long_excerpt(corpus, prompt_tokens, random)
    leaves = workload.cancelled > 0 and random.random() < workload.cancelled
    turns = tuple(
        Turn(long_excerpt(corpus, prompt_tokens, random), max_tokens, workload.think_s)
        for _ in range(workload.turns - 1)
    )
    return PlannedRequest(
        due.at_s,
        prompt,
        max_tokens,
        cancel_after=random.randint(1, max(1, max_tokens - 1)) if leaves else None,
        turns=turns,
    )
