"""Time that guessing may lose: so much at the start, then a share of the time that passes.

Beliefs may be wrong: of a text that has changed, of a draft model whose speed is not known yet, of
a request that ends before it has paid for what was computed for it. So what is spent on guesses is
counted, and what they bring; past a bound nothing is tried, whatever is believed.
"""

from dataclasses import dataclass

_SHARE = 0.01
"""Of the time of steps without guesses: what trying again may cost."""
_MOST_MS = 2000.0
"""At the start, and at most: a success does not pay for an endless failure."""


@dataclass(slots=True)
class SpeculationBudget:
    """Holds the milliseconds that guessing may lose now."""

    left_ms: float = _MOST_MS

    def covers(self, ms: float) -> bool:
        """Tell whether a try may be made that brings nothing in the worst case."""
        return ms <= self.left_ms

    def spend(self, ms: float) -> None:
        """Guesses took so much more time than the step without them."""
        self.left_ms = min(_MOST_MS, self.left_ms - ms)

    def earn(self, ms: float) -> None:
        """Guesses that held saved so much."""
        self.left_ms = min(_MOST_MS, self.left_ms + ms)

    def save_up(self, ms: float) -> None:
        """A step without guesses took so long."""
        self.earn(_SHARE * ms)
