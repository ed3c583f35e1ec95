"""The rules of the queue: what is full, what is hopeless. Pure functions."""

import math
from dataclasses import dataclass

from paceline_sidecar.admission.forecast import seconds_to_first_token
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig
from paceline_wire.limits import Lane

_REQUESTS_AT_LEAST = 8
"""One request takes at most one in so many places of the queue, however many items it has."""

_PLACES_PER_FREE_ONE = 3
"""A caller of weight 1 may hold so many places for each one that is free."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What has no first token yet: places in the queue, and prompt tokens."""

    requests: int = 0
    tokens: int = 0
    batch_requests: int = 0
    batch_tokens: int = 0
    """The batch lane's share of both."""

    def ahead_of(self, lane: Lane) -> int:
        """Return the prompt tokens that are computed before those of an arrival in this lane."""
        return self.tokens - self.batch_tokens if lane == "interactive" else self.tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a request that comes now would add to the queue."""

    lane: Lane
    tokens: int
    places: int = 1
    timeout_s: float = math.inf
    longest: int = 0
    """Tokens of its longest prompt, which has the most time; 0 where that is all of them."""
    answer_s: float | None = None
    """What its longest answer takes at the present pace; None where that is not known."""

    @property
    def longest_prompt(self) -> int:
        """Return the tokens of its longest prompt."""
        return self.longest or self.tokens


def most_requests(policy: AdmissionPolicy) -> int:
    """Return how many places the queue has."""
    return max(1, math.floor(policy.max_queued_requests * policy.reject_at))


def most_places(policy: AdmissionPolicy) -> int:
    """Return how many places the items of one request hold at most."""
    return max(1, most_requests(policy) // _REQUESTS_AT_LEAST)


def places_of(num_items: int, policy: AdmissionPolicy) -> int:
    """Return the places that a request of so many items holds when it arrives."""
    return min(num_items, most_places(policy))


def refuse(
    queue: Backlog,
    arrival: Arrival,
    *,
    config: HotConfig,
    rate: float | None,
    ahead: int | None = None,
) -> Refused | None:
    """Return the reason to refuse an arrival, or None; when to come back is not in it yet.

    `ahead` are the prompt tokens that are computed before its own, where that is not its lane's
    order of arrival.
    """
    ahead = queue.ahead_of(arrival.lane) if ahead is None else ahead
    return is_full(queue, arrival, config.admission) or _hopeless_arrival(
        arrival, ahead, config=config, rate=rate
    )


def beyond_share(
    queue: Backlog, arrival: Arrival, policy: AdmissionPolicy, *, held: int, weight: float
) -> Refused | None:
    """Return the refusal of a caller that holds more places than it leaves to others.

    Its bound grows with what is free (dynamic thresholds, Choudhury and Hahne, 1998): one caller
    alone comes to three quarters of the queue, and whoever comes anew finds a place.
    """
    free = most_requests(policy) - queue.requests
    if not held or held + arrival.places <= _PLACES_PER_FREE_ONE * weight * free:
        return None
    message = f"{held} requests of this key wait, and {free} places are left for others."
    return Refused("key_places", message, retry_after_s=0.0)


def is_full(queue: Backlog, arrival: Arrival, policy: AdmissionPolicy) -> Refused | None:
    """Return the refusal of an arrival that does not fit. The empty queue takes any one prompt."""
    most = most_requests(policy)
    if queue.requests + arrival.places > most:
        message = f"The queue is full: {queue.requests} requests wait, at most {most} may."
        return Refused("queue_full", message, retry_after_s=0.0)
    if policy.max_queued_tokens is None or queue.requests == 0:
        return None
    if queue.tokens + arrival.tokens > policy.max_queued_tokens * policy.reject_at:
        message = f"The queue is full: about {queue.tokens} prompt tokens wait."
        return Refused("queue_tokens", message, retry_after_s=0.0)
    return None


def _hopeless_arrival(
    arrival: Arrival, ahead: int, *, config: HotConfig, rate: float | None
) -> Refused | None:
    most_s = patience_s(
        arrival.lane, config, arrival.timeout_s, arrival.longest_prompt, arrival.answer_s
    )
    predicted_s = seconds_to_first_token(tokens_ahead=ahead, own_tokens=arrival.tokens, rate=rate)
    if not config.admission.shed_hopeless or predicted_s <= most_s:
        return None
    message = (
        f"The first token would come after about {predicted_s:.1f} s, "
        f"later than the {most_s:g} s that there are for it."
    )
    return Refused("hopeless", message, retry_after_s=0.0)


def patience_s(
    lane: Lane,
    config: HotConfig,
    timeout_s: float,
    prompt_tokens: int,
    answer_s: float | None = None,
) -> float:
    """Return how long after its arrival the first token of a prompt is still of use.

    `answer_s` is what its longest answer takes, where that is known.

    A batch request without a target of its lane's own waits as long as its own deadline lets it.
    """
    is_own = lane == "interactive" or config.batch_sla is not None
    answer_ms = None if answer_s is None else answer_s * 1e3
    target_ms = config.sla_of(lane).first_token_ms(prompt_tokens, answer_ms) if is_own else None
    return timeout_s if target_ms is None else min(timeout_s, target_ms / 1e3)
