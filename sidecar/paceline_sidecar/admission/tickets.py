"""Requests in the queue: a party for each, a ticket for each of its items."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from paceline_sidecar.admission.rules import Arrival, Backlog, is_full, patience_s
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import AdmissionPolicy, HotConfig
from paceline_wire.limits import Lane

_MARGIN = 1.25
"""A waiting request is refused only where its predicted wait, divided by this, is too long."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request, as fair queueing sees it."""

    id: str = ""
    """Empty where callers are not told apart."""
    weight: float = 1.0
    """The share of the engine, beside those of others that wait."""
    expected_output: float = 0.0
    """Output tokens that each item is likely to have."""


NOBODY = Caller()


@dataclass(slots=True, eq=False)
class Party:
    """The items of one request; those without a first token share its places in the queue."""

    lane: Lane
    flow: str
    """What fairness counts it to: its caller, or itself where nobody is told apart."""
    arrived_at: float = 0.0
    timeout_s: float = math.inf
    """Its own deadline, counted from its arrival."""
    most_places: int = 1
    caller: Caller = NOBODY
    longest: int = 0
    """Tokens of its longest prompt, whose target is that of all its items."""
    answer_s: float | None = None
    """What its longest answer takes, by the pace when it came."""
    waiting: "dict[Ticket, None]" = field(default_factory=dict)
    give_way: Callable[[Refused], bool] | None = None
    """Refuses the request, unless it has been answered already; None while it is tokenized."""

    @property
    def places(self) -> int:
        """Return the places that it holds."""
        return min(len(self.waiting), self.most_places)

    @property
    def tokens(self) -> int:
        """Return the prompt tokens that wait."""
        return sum(ticket.tokens for ticket in self.waiting)


class Desk(Protocol):
    """What a ticket reports to: the admission control that issued it."""

    def recount(self, ticket: "Ticket", tokens: int) -> None:
        """Count a waiting item with so many tokens."""
        ...

    def send(self, ticket: "Ticket", hand_over: Callable[[], None]) -> None:
        """Hand a waiting item to the engine, now or when its turn comes."""
        ...

    def leave(self, ticket: "Ticket") -> None:
        """Let a waiting item go."""
        ...

    def run(self, change: int) -> None:
        """Count items past their first token."""
        ...


@dataclass(slots=True, eq=False)
class Ticket:
    """One item, in the queue from the arrival of its request to its own first token."""

    desk: Desk
    tokens: int
    party: Party
    turn_at: float | None = None
    """Its place in the order of turns, smaller first; None in the order of arrival."""
    is_offered: bool = False
    """It may go to the engine: it is tokenized, and no other has to go ahead of it."""
    is_running: bool = False
    """Its first token has come, and its last has not."""

    @property
    def is_waiting(self) -> bool:
        """Return whether it is in the queue."""
        return self in self.party.waiting

    @property
    def flow(self) -> str:
        """Return the flow that fairness counts it to."""
        return self.party.flow

    @property
    def weight(self) -> float:
        """Return the share of its flow."""
        return self.party.caller.weight

    @property
    def cost(self) -> float:
        """Return its prompt tokens, and output tokens as far as they can be expected."""
        return self.tokens + self.party.caller.expected_output

    def is_before(self, turn_at: float | None) -> bool:
        """Return whether it goes before a new request whose turn is `turn_at`."""
        return self.turn_at is None or turn_at is None or self.turn_at <= turn_at

    def count(self, tokens: int) -> None:
        """Replace the estimate made on arrival by what the tokenizer counted."""
        if self.is_waiting:
            self.desk.recount(self, tokens)

    def send(self, hand_over: Callable[[], None]) -> None:
        """Hand the item to the engine with `hand_over`, now or when its turn comes."""
        if self.is_waiting:
            self.is_offered = True
            self.desk.send(self, hand_over)

    def start(self) -> None:
        """Leave the queue: the first token has come. May be called again."""
        if self.is_waiting:
            self.is_running = True
            self.desk.run(1)
            self.desk.leave(self)

    def leave(self) -> None:
        """Leave for good: nothing more comes. May be called again."""
        if self.is_waiting:
            self.desk.leave(self)
        if self.is_running:
            self.is_running = False
            self.desk.run(-1)


def turn_of(ticket: Ticket) -> float:
    """Sort by turns; those without one keep their order, before all others."""
    return 0.0 if ticket.turn_at is None else ticket.turn_at


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
        requests, tokens = requests - party.places, tokens - party.tokens
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
        due_at = party.arrived_at + patience_s(
            party.lane, config, party.timeout_s, party.longest, party.answer_s
        )
        predicted_s = (ahead[party.lane] + ticket.tokens) / rate / _MARGIN
        if ahead[party.lane] > 0 and now + predicted_s > due_at:
            lost.append(ticket)
            continue  # what it would have cost is not ahead of the others
        ahead["batch"] += ticket.tokens
        if party.lane == "interactive":
            ahead["interactive"] += ticket.tokens
    return lost
