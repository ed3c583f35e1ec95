"""Drafts for structured output: forced tokens, and those proposed tokens that the grammar allows.

Where a grammar leaves one token, that one is the draft, and it is never wrong: nobody has to guess
it. Else the draft is the proposer's, up to the first token that the grammar refuses. Grammars are
followed by threads, which a step waits for no longer than for any other costly grammar: a request
whose walk is not done by then has no draft in that step.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

from paceline_engine.core.constraint import Guide, Walk
from paceline_engine.core.request import Request
from paceline_engine.drafting.proposer import Ask, Draft, Proposal, Proposer

FORCED_TOKENS = 16
"""Tokens of one draft at most, where a grammar forces them."""
_PATIENCE_S = 0.005
"""How long a step waits for walks, as it does for masks at least. Sixteen take 0.4 ms."""
_THREADS = 2


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A walk of one request's guide."""

    request: Request
    guide: Guide
    proposed: Draft
    most: int


class GuidedProposer:
    """Implements the `Proposer` port around another one, or around none: only what is forced."""

    def __init__(
        self,
        inner: Proposer | None,
        *,
        begin_thread: Callable[[], None] | None = None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`begin_thread` is called first in each thread that walks."""
        self.inner = inner
        self._begin_thread = begin_thread
        self.patience_s = patience_s
        self._walks: dict[str, Walk] = {}
        """The walks of the planned step by request id; none is empty."""
        self._pool: ThreadPoolExecutor | None = None

    @property
    def first_chance(self) -> float:
        """See `Proposer`."""
        return 0.0 if self.inner is None else self.inner.first_chance

    @property
    def takes_time(self) -> bool:
        """See `Proposer`: of what no grammar forces."""
        return self.inner is not None and self.inner.takes_time

    def look_ahead(self, requests: Sequence[Request], *, most: int, guesses: int) -> None:
        """Follow the guides for a step, up to `most` tokens with up to `guesses` proposed ones."""
        wanted = [
            _Wanted(request, request.guide, self._looked_up(request, guesses), most)
            for request in requests
            if request.guide is not None
        ]
        self._walks = self._walked(wanted) if wanted else {}

    def walk_of(self, request: Request) -> Walk | None:
        """Return the request's walk, if it was finished in time."""
        return self._walks.get(request.id)

    def reach(self, request: Request, most: int) -> int:
        """See `Proposer`."""
        walk = self._walks.get(request.id)
        if walk is not None:
            return min(len(walk.token_ids), most)
        # A guided request's proposal was already looked up before its walk.
        if self.inner is None or (request.guide is not None and not self.inner.takes_time):
            return 0
        return self.inner.reach(request, most)

    def pending(self, request: Request) -> int:
        """See `Proposer`."""
        is_walked = self.inner is None or request.id in self._walks
        return 0 if is_walked or self.inner is None else self.inner.pending(request)

    def ms(self, asks: Sequence[Ask]) -> float:
        """See `Proposer`."""
        return 0.0 if self.inner is None else self.inner.ms(self._for_inner(asks))

    def ms_of_one(self, rows: int, context: int) -> float:
        """See `Proposer`."""
        return 0.0 if self.inner is None else self.inner.ms_of_one(rows, context)

    def propose(self, asks: Sequence[Ask]) -> Proposal:
        """See `Proposer`."""
        drafts: dict[str, Draft] = {}
        forced: dict[str, tuple[bool, ...]] = {}

        def take(ask: Ask, walk: Walk) -> None:
            drafts[ask.request.id] = walk.token_ids[: ask.count]
            forced[ask.request.id] = walk.is_forced[: ask.count]

        for ask in asks:
            if (walk := self._walks.get(ask.request.id)) is not None:
                take(ask, walk)
        left = self._for_inner(asks)
        if self.inner is None or not left:
            return Proposal(drafts, forced=forced)
        proposal = self.inner.propose(left)
        proposed = {id_: draft for id_, draft in proposal.drafts.items() if draft}
        guided = {ask.request.id: ask for ask in left if ask.request.guide is not None}
        wanted = [
            _Wanted(ask.request, ask.request.guide, proposed[id_], ask.count)
            for id_, ask in guided.items()
            if ask.request.guide is not None and id_ in proposed
        ]
        for id_, walk in (self._walked(wanted) if wanted else {}).items():
            take(guided[id_], walk)
        drafts |= {id_: draft for id_, draft in proposed.items() if id_ not in guided}
        return Proposal(drafts, proposal.ms, forced)

    def forget(self, request: Request) -> None:
        """See `Proposer`."""
        self._walks.pop(request.id, None)
        if self.inner is not None:
            self.inner.forget(request)

    def _for_inner(self, asks: Sequence[Ask]) -> list[Ask]:
        return [ask for ask in asks if ask.request.id not in self._walks]

    def _looked_up(self, request: Request, most: int) -> Draft:
        """Return the inner proposer's draft, if proposing takes no time."""
        if self.inner is None or self.inner.takes_time or most < 1:
            return ()
        count = self.inner.reach(request, most)
        if not count:
            return ()
        return self.inner.propose([Ask(request, 0, count, 1.0)]).drafts.get(request.id, ())

    def _walked(self, wanted: Sequence[_Wanted]) -> dict[str, Walk]:
        """Return the walks that are done in time and are not empty."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(
                _THREADS, "paceline-walk", initializer=self._begin_thread
            )
        done: dict[str, Walk] = {}
        is_over = threading.Event()
        parts = [part for first in range(_THREADS) if (part := wanted[first::_THREADS])]
        begun = [
            self._pool.submit(_walk_some, part, done.__setitem__, is_over.is_set) for part in parts
        ]
        wait(begun, timeout=self.patience_s)
        is_over.set()
        return {id_: walk for id_, walk in done.copy().items() if walk.token_ids}


def _walk_some(
    wanted: Sequence[_Wanted], done: Callable[[str, Walk], None], is_over: Callable[[], bool]
) -> None:
    """Run in a thread: walk one after the other while anybody waits for it."""
    for each in wanted:
        if is_over():
            return
        output_ids = each.request.token_ids[each.request.num_prompt_tokens :]
        done(each.request.id, each.guide.walk(output_ids, each.proposed, each.most))
