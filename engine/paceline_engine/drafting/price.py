"""Prices draft tokens: their cost beside the decodes of a step, their gain, their possible loss.

With `d` decodes a step makes `d` tokens in `t(d)`. A draft of request `i`, whose tokens are each
accepted with chance `a_i`, adds the tokens that are expected to be accepted; it costs the time to
verify them, by the step model, and the time to propose them, by the proposer:

    tokens = d + sum of a_i^j     over the tokens j = 1.. of each draft; forced ones count 1
    time   = t(d, draft tokens as prefill beside it) + proposer(draft tokens)

Where the step computes prompts as well, draft tokens cost what they add to those, and what they
bring is still counted in steps of decodes alone: those are what is left out later.

Such beliefs may be wrong: about a text that has changed, a draft model whose speed is not known
yet, a request that ends before it has paid for what was computed for it. So the time that drafts
take and save is counted, and past a bound no draft is tried, whatever is believed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_engine.drafting.proposer import Ask, Proposer
from paceline_engine.pacing.pacer import Pacer
from paceline_wire import StepFeatures

MARGIN = 1.05
"""Predicted speed-up that a draft needs: a smaller one is within the prediction's error."""


_BUDGET_SHARE = 0.01
"""Share of the time of steps without drafts that may be lost by trying drafts again."""
_MAX_BUDGET_MS = 2000.0
"""The budget at the start, and at most: a success does not pay for an endless failure."""


@dataclass(slots=True)
class SpeculationBudget:
    """The milliseconds that drafts may lose now."""

    left_ms: float = _MAX_BUDGET_MS

    def covers(self, ms: float) -> bool:
        """Tell whether a draft may be tried that brings nothing in the worst case."""
        return ms <= self.left_ms

    def spend(self, ms: float) -> None:
        """Count the time that a step took longer with drafts than without."""
        self.left_ms = min(_MAX_BUDGET_MS, self.left_ms - ms)

    def earn(self, ms: float) -> None:
        """Count the time that accepted tokens saved."""
        self.left_ms = min(_MAX_BUDGET_MS, self.left_ms + ms)

    def save_up(self, ms: float) -> None:
        """Add the part of a step without drafts, which took `ms`, that may be lost later."""
        self.earn(_BUDGET_SHARE * ms)


class Price:
    """Compares one step with and without drafts; without a step model every draft is free."""

    def __init__(
        self, pacer: Pacer, proposer: Proposer, decodes: int, context: int, prompts: int = 0
    ) -> None:
        """`prompts` are the tokens of prompts in the step, `context` the sum of the decodes'."""
        self._pacer = pacer
        self._proposer = proposer
        self._decodes = decodes
        self._context = context
        self._prompts = prompts
        self.plain_ms = self._ms(0, 0)
        """The decodes alone; 0 where nothing is known of them."""
        self.undrafted_ms = self._ms(prompts, 0) if prompts else self.plain_ms
        """The step without drafts."""

    @property
    def is_known(self) -> bool:
        """Whether the step model has a price."""
        return self.plain_ms > 0

    @property
    def token_ms(self) -> float:
        """The time that one more token of a step is worth."""
        return self.plain_ms / self._decodes

    def is_open(self, *, is_forced: bool = False) -> bool:
        """Tell whether a certain draft token for each decode would pay; if not, none is sought.

        Where a grammar forces the token (`is_forced`), nothing has to propose it.
        """
        if not self.is_known:
            return True
        extra_ms = self._added_ms(self._decodes, self._context)
        if not is_forced:
            extra_ms += self._proposer.ms_of_one(self._decodes, self._context)
        return MARGIN * extra_ms < self.plain_ms

    def least_chance(self, asks: Sequence[Ask]) -> float:
        """Return the break-even acceptance rate: the cost of a draft token over a step token's."""
        if not self.is_known:
            return 0.0
        extra_ms = self.step_ms(asks) - self.plain_ms
        each_ms = extra_ms / sum(ask.count for ask in asks)
        return max(0.0, MARGIN * each_ms * self._decodes / self.plain_ms)

    def pays(self, asks: Sequence[Ask]) -> bool:
        """Tell whether the step makes more tokens in its time with these drafts."""
        if not self.is_known:
            return True
        tokens = self._decodes + sum(ask.expected for ask in asks)
        return tokens * self.plain_ms > MARGIN * self._decodes * self.step_ms(asks)

    def saved_ms(self, asks: Sequence[Ask]) -> float:
        """Return the time that each token takes less with these drafts."""
        tokens = self._decodes + sum(ask.expected for ask in asks)
        return self.token_ms - self.step_ms(asks) / tokens

    def step_ms(self, asks: Sequence[Ask]) -> float:
        """Return the decodes' time, with that to propose and to verify the drafts."""
        return self.plain_ms + self.verify_ms(asks) + self._proposer.ms(asks)

    def verify_ms(self, asks: Sequence[Ask]) -> float:
        """Return the time that verifying the drafts adds to the step."""
        tokens = sum(ask.count for ask in asks)
        attention = sum(ask.count * ask.request.num_computed for ask in asks)
        return self._added_ms(tokens, attention)

    def _added_ms(self, tokens: int, attention: int) -> float:
        return self._ms(self._prompts + tokens, attention) - self.undrafted_ms

    def _ms(self, tokens: int, attention: int) -> float:
        step = StepFeatures(self._decodes, tokens, self._context, attention)
        return self._pacer.predict_ms(step)
