"""SequentialTest: whether one arm misses more often, to be asked at any time.

Each arm's null hypothesis is "at equal load, not more than the other". Evidence against it is an
e-process: a product of bets that gains nothing on average while the null holds, so that by Ville's
inequality it ever exceeds 1/a with a probability of at most a. Two of them are averaged:

* by differences: with d the difference of the two miss rates of a block, exp(l*d - l^2*d^2/2),
  mixed over l. It needs d symmetric about zero under the null, and nothing of how misses bunch:
  Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence
  sequences", Annals of Statistics 49 (2021), for symmetric increments after de la Pena (1999).
* by counts: given all misses of a block, how many are the candidate's, with odds of 1 against a
  mixture of odds: Lindon and Malek, "Anytime-valid inference for multinomial count data", NeurIPS
  2022. Misses that come in bunches of D are one event: the logarithm is divided by a dispersion.

Differences need ten blocks or more however bad the candidate is; counts find a gross one at once.

The arms are never offered quite the same. Where one is offered z times the tokens of the other, its
misses are allowed to be z^s times as many, with a steepness s that nobody knows: both e-processes
are kept for each s of a grid, and the least evidence counts. The least of e-processes is one for
the union of their nulls, so it errs as rarely whatever the true steepness is. Loads that differ by
chance, now one way and now the other, cost little; what a steady difference may explain is not
counted against the arm that bears it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

_RATES = (3.0, 10.0, 30.0, 60.0)  # l, for differences of 1/3 down to 1/60 of all requests
_ODDS = (1.5, 2.5, 4.0, 8.0)
_STEEPNESS = (0.0, 1.0, 2.0, 4.0, 8.0)  # near saturation a tenth more load doubles the misses
# Simulated: with bunches of up to ten, and of stretches of a hundred requests, fewer than 5 % of
# equal arms are told apart. An estimate from few blocks is low too often: it is doubled.
_MIN_DISPERSION = 12.0
_DISPERSION_MARGIN = 2.0
_LEAST_VARIANCE = 0.5


@dataclass(frozen=True, slots=True)
class Block:
    """Requests and misses of both arms over one stretch of time."""

    base_requests: int
    base_misses: int
    candidate_requests: int
    candidate_misses: int
    load_ratio: float = 1.0
    """Tokens offered to the candidate per second and pod, over those of the base."""

    @property
    def misses(self) -> int:
        """Misses of both arms."""
        return self.base_misses + self.candidate_misses

    @property
    def variance(self) -> float:
        """Variance of the candidate's misses, over what it would be if misses were rare.

        Given all misses of a block they are drawn without replacement: where many requests miss,
        chance has less room.
        """
        requests = self.base_requests + self.candidate_requests
        return max(1 - self.misses / requests, _LEAST_VARIANCE)


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
class Bets:
    """Both bets, for one steepness of misses over load."""

    steepness: float
    difference: float = 0.0
    """Sum of the candidate's miss rate less the base's, each as at the lower load of the two."""
    variation: float = 0.0
    """Sum of its squares."""
    up: tuple[float, ...] = (0.0,) * len(_ODDS)
    """Log likelihood ratio of each of the odds against even ones."""
    down: tuple[float, ...] = (0.0,) * len(_ODDS)
    """The same, of the odds turned round."""

    def with_counts(self, block: Block) -> "Bets":
        """Bet on how many of the block's misses are the candidate's."""
        weight = block.load_ratio**self.steepness * block.candidate_requests
        share = weight / (block.base_requests + weight)

        def gains(odds: Sequence[float]) -> list[float]:
            return [
                (
                    block.candidate_misses * math.log(odd)
                    - block.misses * math.log(odd * share + 1 - share)
                )
                / block.variance
                for odd in odds
            ]

        return replace(
            self,
            up=_sum(self.up, gains(_ODDS)),
            down=_sum(self.down, gains([1 / odd for odd in _ODDS])),
        )

    def with_difference(self, block: Block) -> "Bets":
        """Bet on the difference of the block's miss rates."""
        expected = block.load_ratio**self.steepness
        moved = block.candidate_misses / block.candidate_requests / max(
            expected, 1.0
        ) - block.base_misses / block.base_requests * min(expected, 1.0)
        return replace(
            self, difference=self.difference + moved, variation=self.variation + moved * moved
        )

    def log_worse(self, dispersion: float) -> float:
        """Logarithm of the evidence that the candidate misses more."""
        return self._evidence(self.difference, self.up, dispersion)

    def log_better(self, dispersion: float) -> float:
        """Logarithm of the evidence that the candidate misses less."""
        return self._evidence(-self.difference, self.down, dispersion)

    def _evidence(self, difference: float, gains: Sequence[float], dispersion: float) -> float:
        by_differences = [rate * difference - rate * rate * self.variation / 2 for rate in _RATES]
        by_counts = [gain / dispersion for gain in gains]
        return _log_mean([_log_mean(by_differences), _log_mean(by_counts)])


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """The evidence so far. `add` takes a block in; the answers may be read after each."""

    base: Moments = Moments()
    candidate: Moments = Moments()
    bets: tuple[Bets, ...] = tuple(Bets(steepness) for steepness in _STEEPNESS)

    def add(self, block: Block) -> "SequentialTest":
        """Take in one block; both arms have requests in it."""
        return SequentialTest(
            base=self.base.add(block.base_requests, block.base_misses),
            candidate=self.candidate.add(block.candidate_requests, block.candidate_misses),
            bets=tuple(bets.with_counts(block).with_difference(block) for bets in self.bets),
        )

    def look(self, block: Block) -> "SequentialTest":
        """Read the answers with a block that is still being filled, by its counts alone.

        A bet on counts gains or loses with each request, so it may be looked at after any of
        them; a difference is known only at the block's end.
        """
        return replace(self, bets=tuple(bets.with_counts(block) for bets in self.bets))

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
        """Logarithm of the evidence that the candidate misses more than its load explains."""
        dispersion = self.dispersion
        return min(bets.log_worse(dispersion) for bets in self.bets)

    @property
    def log_better(self) -> float:
        """Logarithm of the evidence that the candidate misses less than its load explains."""
        dispersion = self.dispersion
        return min(bets.log_better(dispersion) for bets in self.bets)

    @property
    def log_apart(self) -> float:
        """Logarithm of the evidence that the miss rates differ, whatever the load explains."""
        as_seen, dispersion = self.bets[0], self.dispersion
        return max(as_seen.log_worse(dispersion), as_seen.log_better(dispersion))


def _sum(held: Sequence[float], more: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(held, more, strict=True))


def _log_mean(logs: Sequence[float]) -> float:
    """Average, as logarithms: the log of the mean of the exponentials, without overflow."""
    top = max(logs)
    return top + math.log(sum(math.exp(value - top) for value in logs) / len(logs))
