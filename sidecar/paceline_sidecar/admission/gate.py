"""Admit, or refuse with a reason and a time to come back. Counted on arrival, in one place."""

import math
from dataclasses import dataclass

from paceline_engine.limits import Lane
from paceline_sidecar.admission.forecast import PrefillRate, seconds_to_first_token
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig

_RETRY_AFTER_MIN_S = 1.0
_RETRY_AFTER_MAX_S = 30.0


@dataclass(frozen=True, slots=True)
class Queue:
    """Requests without a first token yet, and their prompt tokens."""

    requests: int = 0
    tokens: int = 0


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place in the queue, held from its arrival to its first token."""

    gate: "Gate"
    tokens: int

    def count(self, tokens: int) -> None:
        """The estimate of the arrival is replaced by what the tokenizer says."""
        if self in self.gate.waiting:
            self.gate.queued_tokens += tokens - self.tokens
            self.tokens = tokens

    def leave(self) -> None:
        """The first token has come, or never will. May be called again."""
        if self in self.gate.waiting:
            self.gate.waiting.remove(self)
            self.gate.queued_tokens -= self.tokens


class Gate:
    """The door. Every request without a first token holds a ticket."""

    def __init__(self) -> None:
        self.rate = PrefillRate()
        self.waiting: set[Ticket] = set()
        self.queued_tokens = 0

    @property
    def queue(self) -> Queue:
        """Who waits now."""
        return Queue(requests=len(self.waiting), tokens=self.queued_tokens)

    def admit(self, estimates: list[int], *, lane: Lane, config: HotConfig) -> list[Ticket]:
        """A ticket for each prompt, all or none; raises `Refused`."""
        refusal = refuse(
            self.queue,
            estimates,
            lane=lane,
            config=config,
            rate=self.rate.tokens_per_s,
        )
        if refusal is not None:
            raise refusal
        tickets = [Ticket(self, tokens) for tokens in estimates]
        self.waiting.update(tickets)
        self.queued_tokens += sum(estimates)
        return tickets

    def seconds_to_drain(self) -> float:
        """When to come back: the backlog at the measured rate, within reason."""
        return _retry_after(self.queued_tokens, self.rate.tokens_per_s)


def refuse(
    queue: Queue,
    estimates: list[int],
    *,
    lane: Lane,
    config: HotConfig,
    rate: float | None,
) -> Refused | None:
    """The reason to turn a request away, or None."""
    policy = config.admission
    come_back_s = _retry_after(queue.tokens, rate)
    most_requests = max(1, math.floor(policy.max_queued_requests * policy.reject_at))
    if queue.requests + len(estimates) > most_requests:
        message = f"The queue is full: {queue.requests} requests wait, {most_requests} may."
        return Refused("queue_full", message, retry_after_s=come_back_s)
    if _too_many_tokens(queue, sum(estimates), policy):
        message = f"The queue is full: about {queue.tokens} prompt tokens wait."
        return Refused("queue_tokens", message, retry_after_s=come_back_s)
    return _hopeless(queue, sum(estimates), lane=lane, config=config, rate=rate)


def _too_many_tokens(queue: Queue, tokens: int, policy: AdmissionPolicy) -> bool:
    """A prompt longer than the cap still gets in when nobody waits."""
    if policy.max_queued_tokens is None or queue.requests == 0:
        return False
    return queue.tokens + tokens > policy.max_queued_tokens * policy.reject_at


def _hopeless(
    queue: Queue, tokens: int, *, lane: Lane, config: HotConfig, rate: float | None
) -> Refused | None:
    """Interactive requests only: a batch request waits as long as its own deadline lets it."""
    target_ms = config.sla.ttft_p99_ms
    if not config.admission.shed_hopeless or target_ms is None or lane != "interactive":
        return None
    predicted_s = seconds_to_first_token(tokens_ahead=queue.tokens, own_tokens=tokens, rate=rate)
    if predicted_s * 1e3 <= target_ms:
        return None
    message = (
        f"The first token would come after about {predicted_s:.1f} s, "
        f"later than the target of {target_ms / 1e3:g} s."
    )
    return Refused("hopeless", message, retry_after_s=_retry_after(queue.tokens, rate))


def _retry_after(tokens: int, rate: float | None) -> float:
    wanted = tokens / rate if rate else _RETRY_AFTER_MIN_S
    return min(max(wanted, _RETRY_AFTER_MIN_S), _RETRY_AFTER_MAX_S)
