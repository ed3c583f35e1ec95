"""Speculation: which running requests get a draft, and how long, so that the step pays for it.

A draft token is worth its time where its chance is above its share of the step's time; the whole
draft, where the step makes more tokens in its time than without (`price.py`). A proposer that has
yet to take in much of a request does so over several steps, a part in each, once the tokens to come
save more than it costs. How many tokens will come is unknown: assuming as many as there were
already is never far from the best. What all of this may lose in the worst case is bounded by a
budget. Where the step model has no price yet, every draft is tried.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from paceline_engine.core.request import Request
from paceline_engine.drafting.acceptance import Acceptance
from paceline_engine.drafting.price import MARGIN, Price, SpeculationBudget
from paceline_engine.drafting.proposer import Ask, Proposal, Proposer
from paceline_engine.pacing.pacer import Pacer

_SOON = 16
"""Known tokens that are taken in beside a draft; more are caught up with before it."""
_AFTER_A_DRAFT = 2
"""Tokens that are not taken in after an accepted draft: its last one, and the one behind it."""
_CATCH_UP = 256
"""Tokens of all requests that one step catches up with at most: it delays every decode."""
_HALVINGS = 5
"""How often less is tried where the whole is too long or too dear."""


@dataclass(slots=True)
class Speculation:
    """Asks for drafts where they pay, and learns from what became of them."""

    max_tokens: int
    """Tokens of one draft, at most."""
    max_model_len: int
    proposer: Proposer
    acceptance: Acceptance = field(init=False)
    budget: SpeculationBudget = field(default_factory=SpeculationBudget)
    _price: Price | None = None
    """The price of the step that is planned or runs."""

    def __post_init__(self) -> None:
        """Start from the chance that the proposer assumes."""
        self.acceptance = Acceptance(self.proposer.first_chance)

    def plan(
        self,
        decoding: Sequence[Request],
        pacer: Pacer,
        *,
        context: int,
        room: int,
        prompts: int = 0,
        allowed_ms: float = inf,
    ) -> list[Ask]:
        """Choose what to ask for in a step of these decodes; nothing where it does not pay.

        `context` is the sum of their contexts, `room` the draft tokens that the step may hold,
        `prompts` its tokens of prompts, `allowed_ms` what it may take with a draft model's time.
        """
        price = self._price = Price(pacer, self.proposer, len(decoding), context, prompts)
        asks = self._asks(decoding, price, room, allowed_ms)
        if not asks:
            self.budget.save_up(price.plain_ms)
        return asks

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """Get the drafts that were planned, or shorter ones, and pay for them."""
        proposal = self.proposer.propose(asks)
        if self._price is not None and self._price.is_known:
            drafts = proposal.drafts
            made = [
                replace(ask, count=len(drafts[ask.request.id]))
                for ask in asks
                if ask.request.id in drafts
            ]
            self.budget.spend(self._price.verify_ms(made) + proposal.ms)
        return proposal

    def verified(self, request: Request, *, drafted: int, accepted: int) -> None:
        """Learn how many tokens of a draft were accepted."""
        self.acceptance.learn(request.id, request.lane, accepted=accepted, drafted=drafted)
        if self._price is not None:
            self.budget.earn(accepted * self._price.token_ms)

    def forget(self, request: Request) -> None:
        """Drop what is kept of a request that is gone."""
        self.proposer.forget(request)
        self.acceptance.forget(request.id)

    def _asks(
        self, decoding: Sequence[Request], price: Price, room: int, allowed_ms: float
    ) -> list[Ask]:
        if not price.is_open():
            return []
        wanted = [ask for each in decoding if (ask := self._ask(each, room)) is not None]
        if not wanted:
            return []
        # As if all were caught up with: what each costs from then on.
        steady = [ask if ask.pending <= _SOON else replace(ask, pending=_SOON) for ask in wanted]
        worth = price.least_chance(steady)
        kept = _fitting([_cut(ask, worth) for ask in steady], room)
        if not kept or not price.pays(kept):
            self.acceptance.rest()
            return []
        pending = {ask.request.id: ask.pending for ask in wanted}
        ready = [ask for ask in kept if pending[ask.request.id] <= _SOON]
        late = [
            replace(ask, pending=pending[ask.request.id], count=0)
            for ask in kept
            if pending[ask.request.id] > _SOON
        ]
        if late:
            late = self._worth_it(late, price, price.saved_ms(_caught_up(kept)))
            ready = ready if ready and price.pays(ready) else []
        return next(
            (asks for asks in _less_and_less(ready, late) if self._may(asks, price, allowed_ms)), []
        )

    def _ask(self, request: Request, room: int) -> Ask | None:
        # Penalties, grammars and logprobs need the tokens before: those are computed one by one.
        most = min(self.max_tokens, self._left(request) - 1, room)
        if most < 1 or not request.is_plain:
            return None
        count = self.proposer.reach(request, most)
        if not count:
            return None
        chance = self.acceptance.chance(request.id, request.lane)
        return Ask(request, self.proposer.pending(request), count, chance)

    def _left(self, request: Request) -> int:
        """Return the tokens that may still come."""
        return min(
            request.sampling.max_tokens - request.num_output_tokens,
            self.max_model_len - len(request.token_ids),
        )

    def _worth_it(self, late: Sequence[Ask], price: Price, saved_ms: float) -> list[Ask]:
        """Keep those whose tokens to come save more than it costs to catch up with them."""
        if not price.is_known:
            return list(late)
        return [
            ask
            for ask in late
            if saved_ms * min(self._left(ask.request), ask.request.num_output_tokens)
            > MARGIN * self.proposer.ms([ask])
        ]

    def _may(self, asks: Sequence[Ask], price: Price, allowed_ms: float) -> bool:
        """Tell whether the step may take so long, and lose so much if every draft is wrong."""
        if not price.is_known:
            return True
        own_ms, verify_ms = self.proposer.ms(asks), price.verify_ms(asks)
        # What takes no time of its own is within the step's tokens, and so within its target.
        is_soon = own_ms <= 0 or price.undrafted_ms + verify_ms + own_ms <= allowed_ms
        return is_soon and self.budget.covers(verify_ms + own_ms)


def _caught_up(asks: Sequence[Ask]) -> list[Ask]:
    return [replace(ask, pending=min(ask.pending, _AFTER_A_DRAFT)) for ask in asks]


def _cut(ask: Ask, least_chance: float) -> Ask:
    """Keep the tokens that are likely enough."""
    count, chance = 0, ask.chance
    while count < ask.count and chance > least_chance:
        count += 1
        chance *= ask.chance
    return ask if count == ask.count else replace(ask, count=count)


def _fitting(asks: Sequence[Ask], room: int) -> list[Ask]:
    """Keep the likeliest that fit into the step."""
    kept = []
    for ask in sorted(asks, key=lambda ask: -ask.chance):
        count = min(ask.count, room)
        room -= count
        if count:
            kept.append(ask if count == ask.count else replace(ask, count=count))
    return kept


def _less_and_less(ready: Sequence[Ask], late: Sequence[Ask]) -> Iterator[list[Ask]]:
    """Yield everything, then half of each draft and of what is caught up with, and so on."""
    for halvings in range(_HALVINGS if ready or late else 0):
        drafts = [
            replace(ask, count=max(1, ask.count >> halvings)) if halvings else ask for ask in ready
        ]
        yield [*drafts, *_part(late, _CATCH_UP >> halvings)]
        if drafts and late:
            yield drafts


def _part(late: Sequence[Ask], tokens: int) -> list[Ask]:
    """Cut to the tokens that one step may catch up with, those that came first."""
    taken = []
    for ask in late:
        pending = min(ask.pending, tokens)
        tokens -= pending
        if pending:
            taken.append(replace(ask, pending=pending))
    return taken
