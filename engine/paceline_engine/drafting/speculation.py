"""Speculation: which running requests get a draft, and how long, so that the step pays for it.

With `d` decodes a step makes `d` tokens in `t(d)`. A guess that is right with chance `a` adds its
tokens' chances, and costs what the step model says:

    tokens = d + sum of a_i^j     over the guesses j = 1.. of each draft
    time   = t(d, guesses as prefill beside it)

A guess is worth it where its chance is above its share of that time; the whole draft, where
tokens / time is above `d / t(d)`. Where the model has no price yet, every guess is tried.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_engine.drafting.acceptance import Acceptance
from paceline_engine.drafting.ngram import Lookup
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.request import Request

Draft = tuple[int, ...]

_MARGIN = 1.05
"""A draft that is predicted to win less than this may as well lose."""


@dataclass(frozen=True, slots=True)
class _Guess:
    request: Request
    tokens: Draft
    chance: float
    """Of each token, given those before it."""

    @property
    def context(self) -> int:
        """Keys that each of its tokens attends to."""
        return self.request.num_computed


@dataclass(slots=True)
class Speculation:
    """Proposes drafts by lookup, and learns from what became of them."""

    max_tokens: int
    """Of one draft."""
    max_model_len: int
    acceptance: Acceptance = field(default_factory=Acceptance)
    num_drafted: int = 0
    """Guessed tokens that were computed, since start."""
    num_accepted: int = 0
    """Of these, those that were right."""
    _lookups: dict[str, Lookup] = field(default_factory=dict)

    def drafts(
        self, decoding: Sequence[Request], pacer: Pacer, *, context: int, room: int
    ) -> dict[str, Draft]:
        """Choose drafts by request for a step of nothing but `decoding`.

        `context` is the sum of their contexts, `room` the tokens that the step may hold beside
        one for each. Empty where drafts do not pay.
        """
        price = _Price(pacer, len(decoding), context)
        if not price.is_open():
            return {}
        guesses = [guess for each in decoding if (guess := self._guess(each, room)) is not None]
        if not guesses:
            return {}
        worth = price.least_chance(guesses)
        kept = _fitting([_cut(guess, worth) for guess in guesses], room)
        if not kept or not price.pays(kept):
            self.acceptance.rest()
            return {}
        return {guess.request.id: guess.tokens for guess in kept}

    def verified(self, request: Request, *, drafted: int, accepted: int) -> None:
        """Learn what became of a draft."""
        self.num_drafted += drafted
        self.num_accepted += accepted
        self.acceptance.learn(request.id, request.lane, held=accepted, drafted=drafted)

    def forget(self, request: Request) -> None:
        """The request is gone."""
        self._lookups.pop(request.id, None)
        self.acceptance.forget(request.id)

    def _guess(self, request: Request, room: int) -> _Guess | None:
        # What adjusts scores by the tokens before, or tells of them, is computed one by one.
        left = request.sampling.max_tokens - request.num_output_tokens - 1
        most = min(self.max_tokens, left, self.max_model_len - len(request.token_ids) - 1, room)
        if most < 1 or not request.is_plain:
            return None
        lookup = self._lookups.setdefault(request.id, Lookup())
        tokens = lookup.propose(request.token_ids, most)
        if not tokens:
            return None
        return _Guess(request, tokens, self.acceptance.of(request.id, request.lane))


class _Price:
    """What guesses cost beside a step's decodes."""

    def __init__(self, pacer: Pacer, decodes: int, context: int) -> None:
        self._pacer = pacer
        self._decodes = decodes
        self._context = context
        self._plain_ms = self._ms(0, 0)

    def is_open(self) -> bool:
        """Tell whether a certain guess for each decode would pay: if not, none is looked for."""
        if self._plain_ms <= 0:
            return True
        extra_ms = self._ms(self._decodes, self._context) - self._plain_ms
        return _MARGIN * extra_ms < self._plain_ms

    def least_chance(self, guesses: Sequence[_Guess]) -> float:
        """The chance that a guess needs: its time, in tokens of a step without any."""
        if self._plain_ms <= 0:
            return 0.0
        extra_ms = self._with(guesses) - self._plain_ms
        each_ms = extra_ms / sum(len(guess.tokens) for guess in guesses)
        return max(0.0, _MARGIN * each_ms * self._decodes / self._plain_ms)

    def pays(self, guesses: Sequence[_Guess]) -> bool:
        """Tell whether the step makes more tokens in its time with these guesses."""
        if self._plain_ms <= 0:
            return True
        tokens = self._decodes + sum(_expected(guess) for guess in guesses)
        return tokens / self._with(guesses) > _MARGIN * self._decodes / self._plain_ms

    def _with(self, guesses: Sequence[_Guess]) -> float:
        tokens = sum(len(guess.tokens) for guess in guesses)
        return self._ms(tokens, sum(len(guess.tokens) * guess.context for guess in guesses))

    def _ms(self, tokens: int, attention: int) -> float:
        return self._pacer.predict_ms(
            decode=self._decodes, prefill=tokens, context=self._context, attention=attention
        )


def _expected(guess: _Guess) -> float:
    """Tokens that a draft adds on average."""
    return sum(guess.chance**count for count in range(1, len(guess.tokens) + 1))


def _cut(guess: _Guess, least_chance: float) -> _Guess:
    """Keep the tokens that are likely enough."""
    count, chance = 0, guess.chance
    while count < len(guess.tokens) and chance > least_chance:
        count += 1
        chance *= guess.chance
    return _Guess(guess.request, guess.tokens[:count], guess.chance)


def _fitting(guesses: Sequence[_Guess], room: int) -> list[_Guess]:
    """Keep the likeliest that fit into the step."""
    kept = []
    for guess in sorted(guesses, key=lambda guess: -guess.chance):
        tokens = guess.tokens[:room]
        room -= len(tokens)
        if tokens:
            kept.append(_Guess(guess.request, tokens, guess.chance))
    return kept
