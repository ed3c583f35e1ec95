"""SequentialTest: whether one arm misses more often, to be asked after each block of requests.

Each arm's null hypothesis is "not more than the other". Evidence against it is an e-process: a
product of bets that gains nothing on average while the null holds, so that by Ville's inequality
it ever exceeds 1/a with a probability of at most a. Two of them are averaged:

* by differences: with d the difference of the two miss rates of a block, exp(l*d - l^2*d^2/2),
  mixed over l. It needs d symmetric about zero under the null, and nothing of how misses bunch:
  Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence
  sequences", Annals of Statistics 49 (2021), for symmetric increments after de la Pena (1999).
* by counts: given all misses of a block, how many are the candidate's, with odds of 1 against a
  mixture of odds: Lindon and Malek, "Anytime-valid inference for multinomial count data", NeurIPS
  2022. Misses that come in bunches of D are one event: the logarithm is divided by a dispersion.

Differences need ten blocks or more however bad the candidate is; counts find a gross one at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_RATES = (3.0, 10.0, 30.0, 60.0)  # l, for differences of 1/3 down to 1/60 of all requests
_ODDS = (1.5, 2.5, 4.0, 8.0)
# Simulated: with bunches of up to ten, and of stretches of a hundred requests, fewer than 5 % of
# equal arms are told apart. An estimate from few blocks is low too often: it is doubled.
_MIN_DISPERSION = 12.0
_DISPERSION_MARGIN = 2.0


@dataclass(frozen=True, slots=True)
class Moments:
    """One arm's blocks, as far as their dispersion needs them."""

    blocks: int = 0
    requests: int = 0
    misses: int = 0
    squares: float = 0.0
    """Sum of misses^2 / requests over the blocks."""

    def add(self, requests: int, misses: int) -> "Moments":
        """Take in one block."""
        return Moments(
            self.blocks + 1,
            self.requests + requests,
            self.misses + misses,
            self.squares + misses * misses / requests,
        )

    @property
    def scatter(self) -> float:
        """Sum over blocks of (misses - expected)^2 / expected: Pearson's, with one rate for all."""
        if not self.misses:
            return 0.0
        rate = self.misses / self.requests
        return (self.squares - self.misses * rate) / rate


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """The evidence so far. `add` takes a block in; both answers may be read after each."""

    base: Moments = Moments()
    candidate: Moments = Moments()
    difference: float = 0.0
    """Sum of the candidate's miss rate less the base's."""
    variation: float = 0.0
    """Sum of its squares."""
    up: tuple[float, ...] = (0.0,) * len(_ODDS)
    """Log likelihood ratio of each of the odds against even ones."""
    down: tuple[float, ...] = (0.0,) * len(_ODDS)
    """The same, of the odds turned round."""

    def add(
        self, base_requests: int, base_misses: int, candidate_requests: int, candidate_misses: int
    ) -> "SequentialTest":
        """Take in one block; both arms have requests in it."""
        share = candidate_requests / (base_requests + candidate_requests)
        both = base_misses + candidate_misses
        moved = candidate_misses / candidate_requests - base_misses / base_requests

        def gains(odds: Sequence[float]) -> list[float]:
            return [
                candidate_misses * math.log(odd) - both * math.log(odd * share + 1 - share)
                for odd in odds
            ]

        return SequentialTest(
            base=self.base.add(base_requests, base_misses),
            candidate=self.candidate.add(candidate_requests, candidate_misses),
            difference=self.difference + moved,
            variation=self.variation + moved * moved,
            up=_sum(self.up, gains(_ODDS)),
            down=_sum(self.down, gains([1 / odd for odd in _ODDS])),
        )

    @property
    def dispersion(self) -> float:
        """How many misses are taken for one event."""
        freedom = self.base.blocks + self.candidate.blocks - 2
        if freedom <= 0:
            return _MIN_DISPERSION
        seen = (self.base.scatter + self.candidate.scatter) / freedom
        return max(_MIN_DISPERSION, _DISPERSION_MARGIN * seen)

    @property
    def log_worse(self) -> float:
        """Logarithm of the evidence that the candidate misses more."""
        return self._evidence(self.difference, self.up)

    @property
    def log_better(self) -> float:
        """Logarithm of the evidence that the candidate misses less."""
        return self._evidence(-self.difference, self.down)

    def _evidence(self, difference: float, gains: Sequence[float]) -> float:
        by_differences = [rate * difference - rate * rate * self.variation / 2 for rate in _RATES]
        by_counts = [gain / self.dispersion for gain in gains]
        return _log_mean([_log_mean(by_differences), _log_mean(by_counts)])


def _sum(held: Sequence[float], more: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(held, more, strict=True))


def _log_mean(logs: Sequence[float]) -> float:
    """Average, as logarithms: the log of the mean of the exponentials, without overflow."""
    top = max(logs)
    return top + math.log(sum(math.exp(value - top) for value in logs) / len(logs))
