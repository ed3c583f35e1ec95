"""Speculation: which running requests get a draft, and how long, so that the step pays for it.

A draft token is worth its time where its chance is above its share of the step's time; the whole
draft, where the step makes more tokens in its time than without (`price.py`). A proposer that has
yet to take in much of a request does so over several steps, a part in each, once the tokens to come
save more than it costs. How many tokens will come is unknown: assuming as many as there were
already is never far from the best. What all of this may lose in the worst case is bounded by a
budget. Where the step model has no price yet, every draft is tried.

Of a structured output some tokens are forced by its grammar (`guided.py`). They are drafted by the
same price, with a chance of 1, where no proposer drafts anything too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from math import inf

from paceline_engine.core.request import Request
from paceline_engine.drafting.acceptance import Acceptance
from paceline_engine.drafting.guided import FORCED_TOKENS, GuidedProposer
from paceline_engine.drafting.price import MARGIN, Price, SpeculationBudget
from paceline_engine.drafting.proposer import Ask, Proposal, Proposer
from paceline_engine.pacing.pacer import Pacer

_SOON = 16
"""Known tokens that may be caught up with in a draft's own step; more need earlier steps."""
_AFTER_A_DRAFT = 2
"""Tokens still to catch up with after an accepted draft: its last one, and the one after it."""
_CATCH_UP = 256
"""Tokens of all requests that one step catches up with at most: it delays every decode."""
_HALVINGS = 5
"""How many smaller plans are tried where the full one takes too long or costs too much."""


@dataclass(slots=True)
class Speculation:
    """Asks for drafts where they pay, and learns from what became of them."""

    max_tokens: int
    """Tokens of one draft that are guessed, at most."""
    max_model_len: int
    proposer: Proposer | None
    """The proposer that guesses them; with None only forced tokens are drafted."""
    forced_tokens: int = FORCED_TOKENS
    """Tokens of one draft of a structured output, at most; 0 for no such draft."""
    max_rows: float = inf
    """Rows whose scores may be masked in one step: memory was measured for so many."""
    begin_thread: Callable[[], None] | None = None
    """Called first in each thread that follows grammars."""
    acceptance: Acceptance = field(init=False)
    budget: SpeculationBudget = field(default_factory=SpeculationBudget)
    guided: GuidedProposer = field(init=False)
    _price: Price | None = None
    """The price of the step that is planned or runs."""
    _forced: dict[str, tuple[bool, ...]] = field(default_factory=dict)
    """Of the drafts on their way: which tokens are forced."""

    def __post_init__(self) -> None:
        """Start from the chance that the proposer assumes."""
        self.guided = GuidedProposer(self.proposer, begin_thread=self.begin_thread)
        self.acceptance = Acceptance(self.guided.first_chance)

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
        price = self._price = Price(pacer, self.guided, len(decoding), context, prompts)
        is_waited_for = prompts > 0 and self.guided.takes_time  # by prompts: nothing is proposed
        asks = self._asks(decoding, price, room, allowed_ms, may_guess=not is_waited_for)
        if not asks:
            self.budget.save_up(price.plain_ms)
        return asks

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """Get the drafts that were planned, or shorter ones, and pay for them."""
        proposal = self.guided.propose(asks)
        self._forced = dict(proposal.forced)
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
        forced = self._forced.pop(request.id, ())[:drafted]
        guessed = drafted - sum(forced)
        if guessed:  # forced tokens are always accepted: they teach nothing
            right = accepted - sum(forced[:accepted])
            self.acceptance.learn(request.id, request.lane, accepted=right, drafted=guessed)
        if self._price is not None:
            self.budget.earn(accepted * self._price.token_ms)

    def forget(self, request: Request) -> None:
        """Drop what is kept of a request that is gone."""
        self.guided.forget(request)
        self.acceptance.forget(request.id)

    def _asks(
        self,
        decoding: Sequence[Request],
        price: Price,
        room: int,
        allowed_ms: float,
        *,
        may_guess: bool,
    ) -> list[Ask]:
        may_guess = may_guess and price.is_open()
        if room < 1 or not (may_guess or price.is_open(is_forced=True)):
            return []
        may_follow = [each for each in decoding if each.guide is not None and self._left(each) > 1]
        guesses = self.max_tokens if may_guess else 0
        self.guided.look_ahead(may_follow, most=self.forced_tokens, guesses=guesses)
        wanted = [
            ask
            for each in decoding
            if (ask := self._ask(each, room, may_guess=may_guess)) is not None
        ]
        if not wanted:
            return []
        # Priced as if the proposer had caught up with all: their cost in every later step.
        steady = [ask if ask.pending <= _SOON else replace(ask, pending=_SOON) for ask in wanted]
        worth = price.least_chance(steady)
        spare_rows = self.max_rows - len(decoding)
        kept = _fitting([_cut(ask, worth) for ask in steady], room, spare_rows)
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

    def _ask(self, request: Request, room: int, *, may_guess: bool) -> Ask | None:
        # Penalties and logprobs need the tokens before: those are computed one by one.
        if not (request.is_plain or request.guide is not None):
            return None
        most = min(self._left(request) - 1, room)
        walk = self.guided.walk_of(request)
        if walk is None:
            most = min(most, self.max_tokens if may_guess else 0)
        count = self.guided.reach(request, most) if most > 0 else 0
        if not count:
            return None
        chance = self.acceptance.chance(request.id, request.lane)
        forced = () if walk is None else walk.is_forced
        return Ask(request, self.guided.pending(request), count, chance, forced)

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
            > MARGIN * self.guided.ms([ask])
        ]

    def _may(self, asks: Sequence[Ask], price: Price, allowed_ms: float) -> bool:
        """Tell whether the step may take so long, and lose so much if every draft is wrong."""
        if not price.is_known:
            return True
        own_ms, verify_ms = self.guided.ms(asks), price.verify_ms(asks)
        # What takes no time of its own is within the step's tokens, and so within its target.
        is_soon = own_ms <= 0 or price.undrafted_ms + verify_ms + own_ms <= allowed_ms
        return is_soon and self.budget.covers(verify_ms + own_ms)


def _caught_up(asks: Sequence[Ask]) -> list[Ask]:
    return [replace(ask, pending=min(ask.pending, _AFTER_A_DRAFT)) for ask in asks]


def _cut(ask: Ask, least_chance: float) -> Ask:
    """Keep the tokens that are likely enough."""
    count = sum(1 for _ in takewhile(lambda chance: chance > least_chance, ask.chances))
    return ask if count == ask.count else replace(ask, count=count)


def _fitting(asks: Sequence[Ask], room: int, spare_rows: float) -> list[Ask]:
    """Keep the likeliest that fit into the step, and into the rows that may be masked."""
    kept = []
    for ask in sorted(asks, key=lambda ask: -max(ask.chances, default=0.0)):
        is_masked = ask.request.guide is not None
        count = int(min(ask.count, room, max(spare_rows, 0) if is_masked else room))
        room -= count
        spare_rows -= count if is_masked else 0
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
