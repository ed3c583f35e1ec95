"""How many tokens a step holds: the most within its time, a better tile, or an exploration.

Among totals c with t^(c) * q_r <= tau, where d decodes run:

    most     the largest c
    better   a bin's last total >= 0.6 * most whose rate c / t^(c), contexts left out, is 2 %
             higher, or the nearest one, where tiles end there and its rate is at most 2 % lower
    dither   in 3 of 100 steps, any bin's last total >= 0.5 * most, so that corrections are learned
"""

from dataclasses import dataclass

from paceline_engine.pacing.pacer import StepShape
from paceline_engine.pacing.prompts_ahead import shared_attention
from paceline_engine.pacing.residuals import Residuals
from paceline_wire.step_cost import StepModel, step_ms

_BETTER = 1.02  # times the prefill rate: less is within the noise of a correction
_EVEN = 0.98  # of the rate: a total within a bin wastes half a tile on average, its end none
_BETTER_FROM = 0.6  # of the most: a smaller step costs the first token of whoever waits
_DITHER_FROM = 0.5
_DITHER_SHARE = 0.03
_WORD = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of one step that its model and corrections allow."""

    model: StepModel
    residuals: Residuals
    shape: StepShape
    allowed_ms: float
    """tau / q_r: what t^ may be."""
    has_tiles: bool = False
    """Matrix products run in tiles of as many tokens as a bin holds."""

    def most(self, budget: int) -> int:
        """The largest total in [decode, budget] predicted within what is allowed, else 0."""
        # The line with the least correction bounds every bin from below and is monotone; from
        # the total it allows, bins are tried downwards, as their corrections need not be.
        residuals, decode = self.residuals, self.shape.decode
        top = self._bisect(decode, budget, self.allowed_ms / residuals.least)
        while top >= decode:
            first = max((top - 1) // residuals.bin_tokens * residuals.bin_tokens + 1, decode)
            found = self._bisect(first, top, self.allowed_ms / residuals.factor(top))
            if found >= first:
                return found
            top = first - 1
        return 0

    def better(self, most: int, least: int) -> int:
        """A total whose tile is used better than that of `most`, else `most`."""
        residuals = self.residuals
        if not residuals.is_known(most):
            return most
        best, rate = most, self._rate(most)
        needed = _EVEN if self.has_tiles else _BETTER
        for total in self._bin_ends(max(least, int(_BETTER_FROM * most) + 1), most):
            if residuals.is_known(total):
                there = self._rate(total)
                if self._ms(total) <= self.allowed_ms and there >= needed * rate:
                    best, rate = total, max(rate, there)
            needed = _BETTER
        return best

    def dithered(self, most: int, least: int, step: int) -> int:
        """A total other than `most` where the `step`-th step is one that explores, else `most`."""
        word = _mixed(step)
        if word >= _DITHER_SHARE * _WORD:
            return most
        ends = self._bin_ends(max(least, int(_DITHER_FROM * most) + 1), most)
        safe = [total for total in ends if self._ms(total) <= self.allowed_ms]
        return safe[_mixed(word) % len(safe)] if safe else most

    def _bin_ends(self, low: int, high: int) -> range:
        """The last totals of bins in [low, high), largest first."""
        width = self.residuals.bin_tokens
        return range((high - 1) // width * width, low - 1, -width)

    def _rate(self, total: int) -> float:
        """Tokens per millisecond, contexts left out.

        A load has a fixed ratio of prompt to output tokens, so what counts is all that a step
        computes. And the longer steps are, the more sequences run at once (Little's law): over a
        second their contexts cost the same, whatever the total.
        """
        return total / (self._line_ms(total, context=0) * self.residuals.factor(total))

    def _ms(self, total: int) -> float:
        return self._line_ms(total, self.shape.context) * self.residuals.factor(total)

    def _line_ms(self, total: int, context: int) -> float:
        prompts = self.shape.prompts
        attention = shared_attention(prompts, len(prompts), total - self.shape.decode)
        return step_ms(self.model.theta, self.model.knee, total, context, attention)

    def _bisect(self, low: int, high: int, line_ms: float) -> int:
        """The largest total in [low, high] whose line is within `line_ms`, else low - 1."""
        low -= 1
        while low < high:
            middle = (low + high + 1) // 2
            if self._line_ms(middle, self.shape.context) <= line_ms:
                low = middle
            else:
                high = middle - 1
        return low


def _mixed(number: int) -> int:
    """A 64-bit word that looks drawn at random (the finaliser of SplitMix64)."""
    word = (number + 1) * 0x9E3779B97F4A7C15 & _WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _WORD
    return word ^ word >> 31
