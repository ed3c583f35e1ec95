"""Admit a request, or refuse it with a reason and a time to come back.

Requests count from their arrival to their first token, and the count of both lanes together is
bounded. The items of one request (prompts, choices, pairs) hold a part of the places at most, and
pass them on; a caller with a key never holds all of them. Where the bound is reached, an
interactive arrival takes the places of the batch requests that came last. A request that cannot
have its first token in time is refused at once: on arrival, and again with every heartbeat of the
engine while it waits.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, count

from msgspec.structs import replace as with_fields

from paceline_sidecar.admission.comeback import (
    Expected,
    seconds_until_fewer,
    seconds_until_places,
)
from paceline_sidecar.admission.dispatch import Dispatcher
from paceline_sidecar.admission.forecast import PrefillRate, TokenPace
from paceline_sidecar.admission.rules import (
    Arrival,
    Backlog,
    beyond_share,
    is_full,
    most_places,
    most_requests,
    patience_s,
    places_of,
    refuse,
)
from paceline_sidecar.admission.tickets import (
    NOBODY,
    Caller,
    Party,
    Ticket,
    batch_requests_to_displace,
    hopeless,
    turn_of,
)
from paceline_sidecar.admission.turns import turn_at
from paceline_sidecar.errors import Refused
from paceline_sidecar.hot_config import HotConfig
from paceline_wire import EngineLoad
from paceline_wire.limits import Lane, Limits


class AdmissionControl:
    """Keeps a ticket for every item without a first token."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = PrefillRate()
        self.pace = TokenPace()
        self.waiting: dict[Ticket, None] = {}
        """In their order of arrival."""
        self._clock = clock
        self._tokens: Counter[Lane] = Counter()
        self._places: Counter[Lane] = Counter()
        self._places_of: Counter[str] = Counter()
        """By caller."""
        self._lanes = {"interactive": Dispatcher(), "batch": Dispatcher()}
        self._num_running = 0
        self._numbers = count()
        self._expected = Expected()
        self._head_since = 0.0
        """When the request that is worked on became the first."""

    @property
    def queue(self) -> Backlog:
        """Return how much waits now."""
        return Backlog(
            requests=self._places.total(),
            tokens=self._tokens.total(),
            batch_requests=self._places["batch"],
            batch_tokens=self._tokens["batch"],
        )

    @property
    def sent_tokens(self) -> int:
        """Return the prompt tokens of what the engine has and has given no token of."""
        return sum(lane.sent_tokens for lane in self._lanes.values())

    def admit(
        self,
        estimates: list[int],
        *,
        lane: Lane,
        config: HotConfig,
        arrived_at: float = 0.0,
        timeout_s: float = math.inf,
        caller: Caller = NOBODY,
        max_output: int = 0,
    ) -> list[Ticket]:
        """Return a ticket for each item, or raise `Refused` for all of them.

        `max_output` bounds the tokens of each answer; 0 where nothing does.
        """
        policy = config.admission
        places = places_of(len(estimates), policy)
        longest, answer_s = max(estimates, default=0), self.pace.answer_s(max_output)
        arrival = Arrival(lane, sum(estimates), places, timeout_s, longest, answer_s)
        turns = [self._turn_at(tokens, lane, arrived_at, config) for tokens in estimates]
        last = max((turn for turn in turns if turn is not None), default=None)
        self._check(arrival, caller, config, last)
        if not self.waiting:
            self._head_since = self._clock()
        flow = caller.id or f"request {next(self._numbers)}"
        party = Party(
            lane, flow, arrived_at, timeout_s, most_places(policy), caller, longest, answer_s
        )
        tickets = [
            Ticket(self, tokens, party, turn) for tokens, turn in zip(estimates, turns, strict=True)
        ]
        for ticket in tickets:
            self.waiting[ticket] = party.waiting[ticket] = None
        self._tokens[lane] += arrival.tokens
        self._count_places(party, places)
        return tickets

    def _turn_at(
        self, tokens: int, lane: Lane, arrived_at: float, config: HotConfig
    ) -> float | None:
        """Return a prompt's turn; None where all go as they come."""
        if config.is_first_come:
            return None
        # The service's own time limit: a client that names a shorter one gains nothing by it.
        patience = patience_s(lane, config, config.admission.request_timeout_s, tokens)
        if config.admission.order == "Fifo":
            return arrived_at + patience
        return turn_at(arrived_at, tokens=tokens, rate=self.rate.tokens_per_s, patience_s=patience)

    def retime(self, tickets: Sequence[Ticket], counted: Sequence[int], config: HotConfig) -> None:
        """Give the items of one request the turns of their prompts, now that these are counted."""
        party = tickets[0].party
        for ticket, tokens in zip(tickets, counted, strict=True):
            ticket.turn_at = self._turn_at(tokens, party.lane, party.arrived_at, config)
        party.longest = max(counted)

    def _check(
        self, arrival: Arrival, caller: Caller, config: HotConfig, turn: float | None
    ) -> None:
        """Raise `Refused` for an arrival that there is no place for, or no time."""
        ahead = self._ahead_of(arrival, caller, turn)
        refusal = refuse(
            self.queue, arrival, config=config, rate=self.rate.tokens_per_s, ahead=ahead
        )
        if refusal is not None and not self._make_place(arrival, config, refusal):
            refusal.retry_after_s = self._comeback_s(arrival, config, refusal, ahead)
            self._expected.add(
                self._clock() + refusal.retry_after_s, places=arrival.places, tokens=arrival.tokens
            )
            raise refusal
        held = self._places_of[caller.id] if caller.id else 0
        beyond = beyond_share(
            self.queue, arrival, config.admission, held=held, weight=caller.weight
        )
        if beyond is not None:
            own = self._lanes[arrival.lane].tokens_of(caller.id) / held
            share = self._lanes[arrival.lane].share_of(caller.id, caller.weight)
            beyond.retry_after_s = seconds_until_fewer(
                own / share, ahead=self.queue.tokens, rate=self.rate.tokens_per_s, worked=0.0
            )
            raise beyond

    def _ahead_of(self, arrival: Arrival, caller: Caller, turn: float | None) -> int:
        """Return the prompt tokens that are computed before those of an arrival."""
        total, lane = self.queue.ahead_of(arrival.lane), self._lanes[arrival.lane]
        passed = self._passed(arrival.lane, turn)
        if not lane.is_contended:
            return total - sum(ticket.tokens for ticket in passed)
        own = lane.tokens_of(caller.id)
        own -= sum(ticket.tokens for ticket in passed if ticket.flow == caller.id)
        share = lane.share_of(caller.id, caller.weight)
        others = (own + arrival.tokens) / share - arrival.tokens
        people = 0 if arrival.lane == "interactive" else self._tokens["interactive"]
        return min(total, math.ceil(people + lane.sent_tokens + others))

    def _passed(self, lane: Lane, turn: float | None) -> list[Ticket]:
        """List who waits in a lane and has a later turn than who comes now."""
        if turn is None:
            return []
        mine = (ticket for ticket in self.waiting if ticket.party.lane == lane)
        return [ticket for ticket in mine if not ticket.is_before(turn)]

    def _make_place(self, arrival: Arrival, config: HotConfig, refusal: Refused) -> bool:
        """Refuse waiting batch requests for an interactive arrival, where that is enough."""
        if arrival.lane != "interactive" or refusal.shed:
            return False
        leaving = batch_requests_to_displace(self.waiting, self.queue, arrival, config.admission)
        message = "The queue is full, and interactive requests go first."
        for party in leaving:
            own = Arrival(
                "batch",
                party.tokens,
                party.places,
                party.timeout_s,
                party.longest,
                party.answer_s,
            )
            given = Refused("displaced", message, retry_after_s=0.0)
            given.retry_after_s = self._comeback_s(own, config, given, self.queue.tokens)
            if party.give_way is not None and party.give_way(given):
                self._end(party)
        return is_full(self.queue, arrival, config.admission) is None

    def comeback_s(
        self, lane: Lane, tokens: int, config: HotConfig, *, timeout_s: float = math.inf
    ) -> float:
        """Predict when a request that lost its time here would be admitted again."""
        arrival = Arrival(lane, tokens, places=1, timeout_s=timeout_s)
        return self._comeback_s(arrival, config, None, self.queue.ahead_of(lane))

    def _comeback_s(
        self, arrival: Arrival, config: HotConfig, refusal: Refused | None, ahead: int
    ) -> float:
        now, queue, policy = self._clock(), self.queue, config.admission
        rate = self.rate.tokens_per_s
        worked = min((now - self._head_since) * (rate or 0.0), self._first_tokens(config))
        places, tokens = self._expected.until_now(now)
        if refusal is not None and refusal.reason in {"queue_full", "displaced"}:
            missing = queue.requests + arrival.places + places - most_requests(policy)
            order = (ticket.tokens for ticket in self._by_lane())
            return seconds_until_places(max(1, missing), order, rate=rate, worked=worked)
        if refusal is not None and refusal.reason == "queue_tokens":
            allowed = (policy.max_queued_tokens or 0) * policy.reject_at
        else:
            allowed = self._allowed_s(arrival, config) * (rate or 0.0)
        ahead += tokens
        over = ahead + arrival.tokens - allowed
        return seconds_until_fewer(over, ahead=ahead, rate=rate, worked=worked)

    @staticmethod
    def _allowed_s(arrival: Arrival, config: HotConfig) -> float:
        return patience_s(
            arrival.lane, config, arrival.timeout_s, arrival.longest_prompt, arrival.answer_s
        )

    def _first_tokens(self, config: HotConfig) -> int:
        """Return the prompt tokens of the request that is worked on; 0 where nobody waits."""
        if not self.waiting:
            return 0
        is_first_come = config.is_first_come
        first = next(iter(self.waiting)) if is_first_come else min(self.waiting, key=turn_of)
        return first.tokens

    def sweep(self, config: HotConfig, now: float, *, computed_ahead: int) -> None:
        """Refuse waiting requests that are hopeless now; `computed_ahead` tokens are prefilled."""
        rate = self.rate.tokens_per_s
        is_as_arrived = config.is_first_come and not any(
            lane.num_held for lane in self._lanes.values()
        )
        order = self.waiting if is_as_arrived else self._by_lane()
        message = "The first token cannot come in time any more: too many wait ahead."
        for ticket in hopeless(order, config, now, rate=rate, computed=computed_ahead):
            party = ticket.party
            if not ticket.is_waiting or party.give_way is None:
                continue
            wait_s = self.comeback_s(party.lane, ticket.tokens, config, timeout_s=party.timeout_s)
            if party.give_way(Refused("hopeless", message, retry_after_s=wait_s)):
                self._end(party)

    def follow(self, limits: Limits) -> None:
        """Keep the engine busy at these limits."""
        for lane in self._lanes.values():
            lane.step_tokens, lane.rows = limits.token_budget, limits.max_batch_size
        self._pump()

    def with_held(self, load: EngineLoad) -> EngineLoad:
        """Return the engine's load plus the requests held here: to others both are one queue."""
        held = {name: lane.num_held for name, lane in self._lanes.items() if lane.num_held}
        if not held:
            return load
        by_lane = Counter(load.waiting_by_lane)
        by_lane.update(held)
        tokens = sum(ticket.tokens for lane in self._lanes.values() for ticket in lane.held())
        return with_fields(
            load,
            waiting=load.waiting + sum(held.values()),
            waiting_tokens=load.waiting_tokens + tokens,
            waiting_by_lane=dict(by_lane),
        )

    def _by_lane(self) -> Iterable[Ticket]:
        """Iterate over who waits, in the order in which prompts are computed."""
        not_yet = (ticket for ticket in self.waiting if not ticket.is_offered)
        return chain(*self._lanes.values(), not_yet)

    def recount(self, ticket: Ticket, tokens: int) -> None:
        """Count a waiting item with so many tokens."""
        self._tokens[ticket.party.lane] += tokens - ticket.tokens
        ticket.tokens = tokens

    def send(self, ticket: Ticket, hand_over: Callable[[], None]) -> None:
        """Hand a waiting item to the engine, now or when its turn comes."""
        self._lanes[ticket.party.lane].offer(ticket, hand_over, running=self._num_running)

    def leave(self, ticket: Ticket) -> None:
        """Let an item go; its place passes on to another of its request, if one has none."""
        party = ticket.party
        before = party.places
        del self.waiting[ticket], party.waiting[ticket]
        self._tokens[party.lane] -= ticket.tokens
        self._count_places(party, party.places - before)
        self._head_since = self._clock()
        self._lanes[party.lane].leave(ticket)
        self._pump()

    def run(self, change: int) -> None:
        """Count items past their first token."""
        self._num_running += change
        if change < 0:
            self._pump()

    def _end(self, party: Party) -> None:
        for ticket in list(party.waiting):
            ticket.leave()

    def _count_places(self, party: Party, change: int) -> None:
        self._places[party.lane] += change
        if party.caller.id:
            self._places_of[party.caller.id] += change
            if not self._places_of[party.caller.id]:
                del self._places_of[party.caller.id]

    def _pump(self) -> None:
        for lane in self._lanes.values():
            lane.pump(running=self._num_running)
