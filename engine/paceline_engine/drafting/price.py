"""What guesses cost beside a step's decodes, and what they are worth.

With `d` decodes a step makes `d` tokens in `t(d)`. A guess that is right with chance `a` adds its
tokens' chances, and costs what the step model says of its verification, and the proposer of itself:

    tokens = d + sum of a_i^j     over the guesses j = 1.. of each draft
    time   = t(d, guesses as prefill beside it) + proposer(guesses)
"""

from collections.abc import Sequence

from paceline_engine.drafting.proposer import Ask, Proposer
from paceline_engine.pacing.pacer import Pacer
from paceline_wire import StepFeatures

MARGIN = 1.05
"""A draft that is predicted to win less than this may as well lose."""


class Price:
    """Compares one step with and without guesses; without a price every guess is free."""

    def __init__(self, pacer: Pacer, proposer: Proposer, decodes: int, context: int) -> None:
        self._pacer = pacer
        self._proposer = proposer
        self._decodes = decodes
        self._context = context
        self.plain_ms = self._ms(0, 0)
        """The step without guesses; 0 where nothing is known of it."""

    @property
    def is_known(self) -> bool:
        """The step model has a price."""
        return self.plain_ms > 0

    @property
    def token_ms(self) -> float:
        """Time that one more token of a step is worth."""
        return self.plain_ms / self._decodes

    def is_open(self) -> bool:
        """Tell whether a certain guess for each decode would pay: if not, none is looked for."""
        if not self.is_known:
            return True
        extra_ms = self._ms(self._decodes, self._context) - self.plain_ms
        extra_ms += self._proposer.ms_of_one(self._decodes, self._context)
        return MARGIN * extra_ms < self.plain_ms

    def least_chance(self, asks: Sequence[Ask]) -> float:
        """The chance that a guess needs: its time, in tokens of a step without any."""
        if not self.is_known:
            return 0.0
        extra_ms = self.step_ms(asks) - self.plain_ms
        each_ms = extra_ms / sum(ask.count for ask in asks)
        return max(0.0, MARGIN * each_ms * self._decodes / self.plain_ms)

    def pays(self, asks: Sequence[Ask]) -> bool:
        """Tell whether the step makes more tokens in its time with these guesses."""
        if not self.is_known:
            return True
        tokens = self._decodes + sum(ask.expected for ask in asks)
        return tokens * self.plain_ms > MARGIN * self._decodes * self.step_ms(asks)

    def saved_ms(self, asks: Sequence[Ask]) -> float:
        """Time that each token takes less with these guesses."""
        tokens = self._decodes + sum(ask.expected for ask in asks)
        return self.token_ms - self.step_ms(asks) / tokens

    def step_ms(self, asks: Sequence[Ask]) -> float:
        """The step's time, its guesses' own included."""
        return self.plain_ms + self.verify_ms(asks) + self._proposer.ms(asks)

    def verify_ms(self, asks: Sequence[Ask]) -> float:
        """What the step takes longer by guesses that are there."""
        tokens = sum(ask.count for ask in asks)
        attention = sum(ask.count * ask.request.num_computed for ask in asks)
        return self._ms(tokens, attention) - self.plain_ms

    def _ms(self, tokens: int, attention: int) -> float:
        step = StepFeatures(self._decodes, tokens, self._context, attention)
        return self._pacer.predict_ms(step)
