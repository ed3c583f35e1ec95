"""Admit a request, or refuse it with a reason and a time to come back.

Requests count from their arrival to their first token, and the count of both lanes together is
bounded. Where the bound is reached, an interactive arrival takes the place of the batch requests
that came last. A request that cannot have its first token in time is refused at once: on arrival,
and again with every heartbeat of the engine while it waits.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from paceline_sidecar.admission.forecast import PrefillRate, seconds_to_first_token
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig
from paceline_wire.limits import Lane

_RETRY_AFTER_MIN_S = 1.0
_RETRY_AFTER_MAX_S = 30.0
_MARGIN = 1.25
"""A waiting request is refused only where its predicted wait, divided by this, is too long."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Requests without a first token yet, and their prompt tokens."""

    requests: int = 0
    tokens: int = 0
    batch_requests: int = 0
    batch_tokens: int = 0
    """The batch lane's share of both."""

    def ahead_of(self, lane: Lane) -> int:
        """Return the prompt tokens that are computed before those of an arrival in this lane."""
        return self.tokens - self.batch_tokens if lane == "interactive" else self.tokens


@dataclass(slots=True, eq=False)
class Ticket:
    """One request's place in the queue, held from its arrival to its first token."""

    admission: "AdmissionControl"
    tokens: int
    lane: Lane = "interactive"
    arrived_at: float = 0.0
    timeout_s: float = math.inf
    """Its own deadline, counted from its arrival."""
    give_way: Callable[[Refused], bool] | None = None
    """Refuses the request, unless it has been answered already; None while it is tokenized."""

    def count(self, tokens: int) -> None:
        """Replace the estimate made on arrival by what the tokenizer counted."""
        if self in self.admission.waiting:
            self.admission.forget(self)
            self.tokens = tokens
            self.admission.remember(self)

    def leave(self) -> None:
        """Leave the queue: the first token has come, or never will. May be called again."""
        if self in self.admission.waiting:
            self.admission.forget(self)
            del self.admission.waiting[self]


class AdmissionControl:
    """Keeps a ticket for every request without a first token."""

    def __init__(self) -> None:
        self.rate = PrefillRate()
        self.waiting: dict[Ticket, None] = {}
        """In their order of arrival."""
        self._tokens: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._requests: dict[Lane, int] = {"interactive": 0, "batch": 0}

    @property
    def queue(self) -> Backlog:
        """Return how much waits now."""
        return Backlog(
            requests=len(self.waiting),
            tokens=sum(self._tokens.values()),
            batch_requests=self._requests["batch"],
            batch_tokens=self._tokens["batch"],
        )

    def admit(
        self,
        estimates: list[int],
        *,
        lane: Lane,
        config: HotConfig,
        arrived_at: float = 0.0,
        timeout_s: float = math.inf,
    ) -> list[Ticket]:
        """Return a ticket for each prompt, or raise `Refused` for all of them."""
        refusal = refuse(
            self.queue,
            estimates,
            lane=lane,
            config=config,
            rate=self.rate.tokens_per_s,
            timeout_s=timeout_s,
        )
        if refusal is not None and not self._make_place(estimates, lane, config, refusal):
            raise refusal
        tickets = [Ticket(self, tokens, lane, arrived_at, timeout_s) for tokens in estimates]
        for ticket in tickets:
            self.waiting[ticket] = None
            self.remember(ticket)
        return tickets

    def sweep(self, config: HotConfig, now: float, *, computed_ahead: int) -> None:
        """Refuse waiting requests that are hopeless now; `computed_ahead` tokens are prefilled."""
        rate = self.rate.tokens_per_s
        for ticket in hopeless(self.waiting, config, now, rate=rate, computed=computed_ahead):
            message = "The first token cannot come in time any more: too many wait ahead."
            if ticket.give_way is not None:
                ticket.give_way(Refused("hopeless", message, retry_after_s=self.seconds_to_drain()))
                ticket.leave()

    def seconds_to_drain(self) -> float:
        """Return when to come back: the backlog at the measured rate, within bounds."""
        return _retry_after(sum(self._tokens.values()), self.rate.tokens_per_s)

    def remember(self, ticket: Ticket) -> None:
        """Count a ticket."""
        self._tokens[ticket.lane] += ticket.tokens
        self._requests[ticket.lane] += 1

    def forget(self, ticket: Ticket) -> None:
        """Count a ticket no longer."""
        self._tokens[ticket.lane] -= ticket.tokens
        self._requests[ticket.lane] -= 1

    def _make_place(
        self, estimates: list[int], lane: Lane, config: HotConfig, refusal: Refused
    ) -> bool:
        """Refuse waiting batch requests for an interactive arrival, where that is enough."""
        if lane != "interactive" or refusal.shed:
            return False
        leaving = batch_requests_to_displace(self.waiting, self.queue, estimates, config.admission)
        message = "The queue is full, and interactive requests go first."
        for ticket in leaving:
            given = Refused("displaced", message, retry_after_s=refusal.retry_after_s)
            if ticket.give_way is not None and ticket.give_way(given):
                ticket.leave()
        return is_full(self.queue, estimates, config.admission) is None


def batch_requests_to_displace(
    waiting: Iterable[Ticket], queue: Backlog, estimates: list[int], policy: AdmissionPolicy
) -> list[Ticket]:
    """Choose the newest batch requests that make enough room together; none where all do not."""
    leaving: list[Ticket] = []
    requests, tokens = queue.requests, queue.tokens
    able = [t for t in waiting if t.lane == "batch" and t.give_way is not None]
    for ticket in reversed(able):
        if is_full(Backlog(requests, tokens), estimates, policy) is None:
            break
        leaving.append(ticket)
        requests, tokens = requests - 1, tokens - ticket.tokens
    return leaving if is_full(Backlog(requests, tokens), estimates, policy) is None else []


def refuse(
    queue: Backlog,
    estimates: list[int],
    *,
    lane: Lane,
    config: HotConfig,
    rate: float | None,
    timeout_s: float = math.inf,
) -> Refused | None:
    """Return the reason to refuse an arrival, or None."""
    return is_full(queue, estimates, config.admission, rate) or _hopeless_arrival(
        queue, sum(estimates), lane=lane, config=config, rate=rate, timeout_s=timeout_s
    )


def is_full(
    queue: Backlog, estimates: list[int], policy: AdmissionPolicy, rate: float | None = None
) -> Refused | None:
    """Return the refusal of an arrival that does not fit. The empty queue takes any one prompt."""
    come_back_s = _retry_after(queue.tokens, rate)
    most_requests = max(1, math.floor(policy.max_queued_requests * policy.reject_at))
    if queue.requests + len(estimates) > most_requests:
        message = f"The queue is full: {queue.requests} requests wait, {most_requests} may."
        return Refused("queue_full", message, retry_after_s=come_back_s)
    if policy.max_queued_tokens is None or queue.requests == 0:
        return None
    if queue.tokens + sum(estimates) > policy.max_queued_tokens * policy.reject_at:
        message = f"The queue is full: about {queue.tokens} prompt tokens wait."
        return Refused("queue_tokens", message, retry_after_s=come_back_s)
    return None


def hopeless(
    waiting: Iterable[Ticket],
    config: HotConfig,
    now: float,
    *,
    rate: float | None,
    computed: int,
) -> list[Ticket]:
    """Choose the requests whose first token will be late, for what is computed before it.

    The first `computed` of the waiting tokens are prefilled already.
    """
    if rate is None or not config.admission.shed_hopeless:
        return []
    lost: list[Ticket] = []
    ahead: dict[Lane, int] = {"interactive": -computed, "batch": -computed}
    for ticket in waiting:
        due_at = ticket.arrived_at + _patience_s(ticket.lane, config, ticket.timeout_s)
        predicted_s = (ahead[ticket.lane] + ticket.tokens) / rate / _MARGIN
        if ahead[ticket.lane] > 0 and now + predicted_s > due_at:
            lost.append(ticket)
            continue  # what it would have cost is not ahead of the others
        ahead["batch"] += ticket.tokens
        if ticket.lane == "interactive":
            ahead["interactive"] += ticket.tokens
    return lost


def _hopeless_arrival(
    queue: Backlog,
    tokens: int,
    *,
    lane: Lane,
    config: HotConfig,
    rate: float | None,
    timeout_s: float,
) -> Refused | None:
    patience_s = _patience_s(lane, config, timeout_s)
    ahead = queue.ahead_of(lane)
    predicted_s = seconds_to_first_token(tokens_ahead=ahead, own_tokens=tokens, rate=rate)
    if not config.admission.shed_hopeless or predicted_s <= patience_s:
        return None
    message = (
        f"The first token would come after about {predicted_s:.1f} s, "
        f"later than the {patience_s:g} s that there are for it."
    )
    return Refused("hopeless", message, retry_after_s=_retry_after(ahead, rate))


def _patience_s(lane: Lane, config: HotConfig, timeout_s: float) -> float:
    """Return how long after its arrival a request's first token is still of use.

    A batch request without a target of its lane's own waits as long as its own deadline lets it.
    """
    is_own = lane == "interactive" or config.batch_sla is not None
    target_ms = config.sla_of(lane).ttft_p99_ms if is_own else None
    return timeout_s if target_ms is None else min(timeout_s, target_ms / 1e3)


def _retry_after(tokens: int, rate: float | None) -> float:
    wanted = tokens / rate if rate else _RETRY_AFTER_MIN_S
    return min(max(wanted, _RETRY_AFTER_MIN_S), _RETRY_AFTER_MAX_S)
