"""Drift: what changed about the load or the device from one decision to the next. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paceline_tuner.page_hinkley import PageHinkley
from paceline_tuner.records import after, column
from paceline_tuner.telemetry import Load, RequestRecord
from paceline_tuner.window import Evidence

Signal = Literal["rate", "prompt", "output", "prefix", "device"]
_DEMAND: frozenset[Signal] = frozenset({"rate", "prompt", "output", "prefix"})
_RATE = PageHinkley(floor=0.1, spread=0.35)
_LENGTH = PageHinkley(floor=0.1, spread=1.0)
_SHARE = PageHinkley(floor=0.05, spread=0.5)
_PACE = PageHinkley(floor=0.05, spread=0.05)
_PROMPTS: frozenset[Signal] = frozenset({"prompt", "prefix"})
_MIN_REQUESTS = 3  # of one period, for a mean of them


@dataclass(frozen=True, slots=True)
class Drift:
    """Five signals, each with its baseline. `*_at` and `*_since` are the pod's clock."""

    at: float | None = None
    """When the counters below were read."""
    load: Load | None = None
    last_seq: int = 0
    rate: PageHinkley = _RATE
    """Log of requests per second."""
    prompt: PageHinkley = _LENGTH
    """Log of the mean prompt tokens of those that arrived."""
    output: PageHinkley = _LENGTH
    """Mean of the log output tokens of those that ended."""
    prefix: PageHinkley = _SHARE
    """Share of prompt tokens that the prefix cache did not hold."""
    device: PageHinkley = _PACE
    """`fast`: measured over predicted step time."""
    tripped: tuple[Signal, ...] = ()
    """The signals in which the last period showed a change."""
    fresh_since: float = -math.inf
    """When the last change began: what came before belongs to another load."""
    lengths_since: float = -math.inf
    """When lengths changed last: a new rate alone does not change how long requests are."""
    prompt_since: float = -math.inf
    """When prompts changed last, or what the prefix cache holds of them."""

    @property
    def has_new_load(self) -> bool:
        """The last period showed a change of the load."""
        return not _DEMAND.isdisjoint(self.tripped)

    @property
    def uncached_prompt(self) -> float:
        """Tokens to compute for a prompt that arrives now, before any such request has ended."""
        missed = self.prefix.mean if self.prefix.num else 1.0
        return max(1.0, missed * math.exp(self.prompt.mean))

    def observe(self, evidence: Evidence, interval_s: float) -> "Drift":
        """Take in one decision period; less than half of one is left for the next time."""
        now, load, last = evidence.now, evidence.load, self.load
        if self.at is None or last is None:
            return replace(self, at=now, load=load, last_seq=_last_seq(evidence.requests))
        if now - self.at < interval_s / 2:
            return replace(self, tripped=())
        ended = after(evidence.requests, self.last_seq)
        samples = _samples(last, load, ended, now - self.at, evidence.model.fast)
        watched: dict[Signal, PageHinkley] = {s.of: self._watched(s) for s in samples}
        tripped: tuple[Signal, ...] = tuple(
            name for name, kept in watched.items() if kept.changed_at is not None
        )
        began = {name: watched[name].changed_at or now for name in tripped if name in _DEMAND}
        lengths = [at for name, at in began.items() if name != "rate"]
        prompts = [at for name, at in began.items() if name in _PROMPTS]
        return Drift(
            at=now,
            load=load,
            last_seq=max(self.last_seq, _last_seq(evidence.requests)),
            rate=watched.get("rate", self.rate),
            prompt=watched.get("prompt", self.prompt),
            output=watched.get("output", self.output),
            prefix=watched.get("prefix", self.prefix),
            device=watched.get("device", self.device),
            tripped=tripped,
            fresh_since=max(began.values(), default=self.fresh_since),
            lengths_since=max(lengths, default=self.lengths_since),
            prompt_since=max(prompts, default=self.prompt_since),
        )

    def _watched(self, sample: "_Sample") -> PageHinkley:
        kept: PageHinkley = getattr(self, sample.of)
        return kept.add(sample.value, self.at or 0.0, sample.num)


STEADY = Drift()
"""The drift before anything was seen."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """One signal over one period: the mean of `num` values."""

    of: Signal
    value: float
    num: int = 1


def _samples(
    before: Load, load: Load, ended: Sequence[RequestRecord], seconds: float, fast: float
) -> Iterator[_Sample]:
    """Measure one period; a signal that it does not show is left out."""
    yield _Sample("device", fast)
    weights = column(ended, "weight")
    arrived = int(weights.sum()) + load.running + load.waiting - before.running - before.waiting
    # One more than was counted: a period without arrivals has a logarithm too.
    yield _Sample("rate", math.log((max(arrived, 0) + 1) / seconds))
    made = column(ended, "output_tokens")
    is_served = (column(ended, "is_ok") > 0) & (made > 0)
    num_served = int(weights[is_served].sum())
    if num_served >= _MIN_REQUESTS:
        newest_first = weights[is_served][::-1].tolist(), made[is_served][::-1].tolist()
        pairs = zip(*newest_first, strict=True)
        logs = sum(weight * math.log(tokens) for weight, tokens in pairs)
        yield _Sample("output", logs / num_served, num_served)
    if arrived < _MIN_REQUESTS:
        return
    hits = load.prefix_hits - before.prefix_hits
    queries = load.prefix_queries - before.prefix_queries
    if 0 <= hits <= queries and queries > 0:
        yield _Sample("prefix", 1 - hits / queries, arrived)
    # What arrived was computed, found in the prefix cache, or waits. Recomputed tokens are none.
    computed = load.prompt_tokens - before.prompt_tokens
    tokens = computed + max(hits, 0) + load.waiting_tokens - before.waiting_tokens
    if tokens > 0 and computed >= 0 and load.preemptions == before.preemptions:
        yield _Sample("prompt", math.log(tokens / arrived), arrived)


def _last_seq(requests: Sequence[RequestRecord]) -> int:
    return int(column(requests, "seq")[-1]) if requests else 0
