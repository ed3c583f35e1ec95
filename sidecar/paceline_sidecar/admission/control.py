"""Admit a request, or refuse it with a reason and a time to come back.

Requests count from their arrival to their first token, and the count of both lanes together is
bounded. The items of one request (prompts, choices, pairs) hold a part of the places at most, and
pass them on. Where the bound is reached, an interactive arrival takes the places of the batch
requests that came last. A request that cannot have its first token in time is refused at once: on
arrival, and again with every heartbeat of the engine while it waits.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from paceline_sidecar.admission.comeback import (
    Expected,
    seconds_until_fewer,
    seconds_until_places,
)
from paceline_sidecar.admission.forecast import PrefillRate
from paceline_sidecar.admission.rules import (
    Arrival,
    Backlog,
    is_full,
    most_places,
    most_requests,
    patience_s,
    places_of,
    refuse,
)
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig
from paceline_wire.limits import Lane

_MARGIN = 1.25
"""A waiting request is refused only where its predicted wait, divided by this, is too long."""


@dataclass(slots=True, eq=False)
class Party:
    """The items of one request; those without a first token share its places in the queue."""

    lane: Lane = "interactive"
    arrived_at: float = 0.0
    timeout_s: float = math.inf
    """Its own deadline, counted from its arrival."""
    most_places: int = 1
    waiting: "dict[Ticket, None]" = field(default_factory=dict)
    give_way: Callable[[Refused], bool] | None = None
    """Refuses the request, unless it has been answered already; None while it is tokenized."""

    @property
    def places(self) -> int:
        """Return the places that it holds."""
        return min(len(self.waiting), self.most_places)


@dataclass(slots=True, eq=False)
class Ticket:
    """One item in the queue, from the arrival of its request to its own first token."""

    admission: "AdmissionControl"
    tokens: int
    party: Party

    def count(self, tokens: int) -> None:
        """Replace the estimate made on arrival by what the tokenizer counted."""
        if self in self.admission.waiting:
            self.admission.recount(self, tokens)

    def leave(self) -> None:
        """Leave the queue: the first token has come, or never will. May be called again."""
        if self in self.admission.waiting:
            self.admission.leave(self)


class AdmissionControl:
    """Keeps a ticket for every item without a first token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = PrefillRate()
        self.waiting: dict[Ticket, None] = {}
        """In their order of arrival."""
        self._clock = clock
        self._tokens: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._places: dict[Lane, int] = {"interactive": 0, "batch": 0}
        self._expected = Expected()
        self._head_since = 0.0
        """When the request that is worked on became the first."""

    @property
    def queue(self) -> Backlog:
        """Return how much waits now."""
        return Backlog(
            requests=sum(self._places.values()),
            tokens=sum(self._tokens.values()),
            batch_requests=self._places["batch"],
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
        """Return a ticket for each item, or raise `Refused` for all of them."""
        arrival = Arrival(
            lane, sum(estimates), places_of(len(estimates), config.admission), timeout_s
        )
        refusal = refuse(self.queue, arrival, config=config, rate=self.rate.tokens_per_s)
        if refusal is not None and not self._make_place(arrival, config, refusal):
            refusal.retry_after_s = self._comeback_s(arrival, config, refusal)
            self._expected.add(
                self._clock() + refusal.retry_after_s, places=arrival.places, tokens=arrival.tokens
            )
            raise refusal
        if not self.waiting:
            self._head_since = self._clock()
        party = Party(lane, arrived_at, timeout_s, most_places(config.admission))
        tickets = [Ticket(self, tokens, party) for tokens in estimates]
        for ticket in tickets:
            self.waiting[ticket] = party.waiting[ticket] = None
        self._tokens[lane] += arrival.tokens
        self._places[lane] += arrival.places
        return tickets

    def sweep(self, config: HotConfig, now: float, *, computed_ahead: int) -> None:
        """Refuse waiting requests that are hopeless now; `computed_ahead` tokens are prefilled."""
        rate = self.rate.tokens_per_s
        for ticket in hopeless(self.waiting, config, now, rate=rate, computed=computed_ahead):
            if ticket not in self.waiting or ticket.party.give_way is None:
                continue
            message = "The first token cannot come in time any more: too many wait ahead."
            refusal = Refused("hopeless", message, retry_after_s=0.0)
            party = ticket.party
            refusal.retry_after_s = self.comeback_s(
                party.lane, ticket.tokens, config, timeout_s=party.timeout_s
            )
            if ticket.party.give_way(refusal):
                self._end(party)

    def comeback_s(
        self, lane: Lane, tokens: int, config: HotConfig, *, timeout_s: float = math.inf
    ) -> float:
        """Predict when a request that lost its time here would be admitted again."""
        arrival = Arrival(lane, tokens, places=1, timeout_s=timeout_s)
        return self._comeback_s(arrival, config, None)

    def recount(self, ticket: Ticket, tokens: int) -> None:
        """Count a waiting item with so many tokens."""
        self._tokens[ticket.party.lane] += tokens - ticket.tokens
        ticket.tokens = tokens

    def leave(self, ticket: Ticket) -> None:
        """Let an item go; its place passes on to another of its request, if one has none."""
        party = ticket.party
        before = party.places
        del self.waiting[ticket], party.waiting[ticket]
        self._tokens[party.lane] -= ticket.tokens
        self._places[party.lane] += party.places - before
        self._head_since = self._clock()

    def _end(self, party: Party) -> None:
        for ticket in list(party.waiting):
            self.leave(ticket)

    def _make_place(self, arrival: Arrival, config: HotConfig, refusal: Refused) -> bool:
        """Refuse waiting batch requests for an interactive arrival, where that is enough."""
        if arrival.lane != "interactive" or refusal.shed:
            return False
        leaving = batch_requests_to_displace(self.waiting, self.queue, arrival, config.admission)
        message = "The queue is full, and interactive requests go first."
        for party in leaving:
            tokens = sum(ticket.tokens for ticket in party.waiting)
            own = Arrival("batch", tokens, party.places, party.timeout_s)
            given = Refused("displaced", message, retry_after_s=0.0)
            given.retry_after_s = self._comeback_s(own, config, given)
            if party.give_way is not None and party.give_way(given):
                self._end(party)
        return is_full(self.queue, arrival, config.admission) is None

    def _comeback_s(self, arrival: Arrival, config: HotConfig, refusal: Refused | None) -> float:
        now, queue, policy = self._clock(), self.queue, config.admission
        rate = self.rate.tokens_per_s
        head = next(iter(self.waiting)).tokens if self.waiting else 0
        worked = min((now - self._head_since) * (rate or 0.0), head)
        places, tokens = self._expected.until_now(now)
        if refusal is not None and refusal.reason in {"queue_full", "displaced"}:
            missing = queue.requests + arrival.places + places - most_requests(policy)
            order = (ticket.tokens for ticket in self._in_order())
            return seconds_until_places(max(1, missing), order, rate=rate, worked=worked)
        ahead = queue.ahead_of(arrival.lane) + tokens
        if refusal is not None and refusal.reason == "queue_tokens":
            allowed = (policy.max_queued_tokens or 0) * policy.reject_at
        else:
            allowed = patience_s(arrival.lane, config, arrival.timeout_s) * (rate or 0.0)
        over = ahead + arrival.tokens - allowed
        return seconds_until_fewer(over, ahead=ahead, rate=rate, worked=worked)

    def _in_order(self) -> Iterator[Ticket]:
        """Iterate over who waits, in the order in which prompts are computed."""
        for lane in self._places:
            yield from (ticket for ticket in self.waiting if ticket.party.lane == lane)


def batch_requests_to_displace(
    waiting: Iterable[Ticket], queue: Backlog, arrival: Arrival, policy: AdmissionPolicy
) -> list[Party]:
    """Choose the newest batch requests that make enough room together; none where all do not."""
    leaving: list[Party] = []
    requests, tokens = queue.requests, queue.tokens
    able = {t.party: None for t in waiting if t.party.lane == "batch" and t.party.give_way}
    for party in reversed(able):
        if is_full(Backlog(requests, tokens), arrival, policy) is None:
            break
        leaving.append(party)
        requests -= party.places
        tokens -= sum(ticket.tokens for ticket in party.waiting)
    return leaving if is_full(Backlog(requests, tokens), arrival, policy) is None else []


def hopeless(
    waiting: Iterable[Ticket],
    config: HotConfig,
    now: float,
    *,
    rate: float | None,
    computed: int,
) -> list[Ticket]:
    """Choose the items whose first token will be late, for what is computed before it.

    The first `computed` of the waiting tokens are prefilled already.
    """
    if rate is None or not config.admission.shed_hopeless:
        return []
    lost: list[Ticket] = []
    ahead: dict[Lane, int] = {"interactive": -computed, "batch": -computed}
    for ticket in waiting:
        party = ticket.party
        due_at = party.arrived_at + patience_s(party.lane, config, party.timeout_s)
        predicted_s = (ahead[party.lane] + ticket.tokens) / rate / _MARGIN
        if ahead[party.lane] > 0 and now + predicted_s > due_at:
            lost.append(ticket)
            continue  # what it would have cost is not ahead of the others
        ahead["batch"] += ticket.tokens
        if party.lane == "interactive":
            ahead["interactive"] += ticket.tokens
    return lost
