"""The sequential test: how often it is wrong, and how soon it is right, when asked all the time."""

import math
import random
from collections.abc import Callable
from functools import partial

import pytest

from paceline_tuner.experiment.sequential import Block, SequentialTest

CERTAIN = math.log(3 / 0.05)
Misses = Callable[[int], int]
"""How many of so many requests miss."""


def independent(chance: float, dice: random.Random) -> Misses:
    return lambda requests: sum(dice.random() < chance for _ in range(requests))


def bunched(chance: float, dice: random.Random, *, size: float = 5.0) -> Misses:
    """Misses come in bunches of this mean size, as when one long prompt stalls a batch."""

    def misses(requests: int) -> int:
        found = 0
        for _ in range(requests):
            if dice.random() < chance / size:
                found += 1
                while dice.random() > 1 / size:
                    found += 1
        return min(requests, found)

    return misses


def bursts(chance: float, dice: random.Random, *, stays: float = 0.9) -> Misses:
    """Bad spells of a hundred requests or so, in which three of ten miss."""
    is_bad = False

    def misses(requests: int) -> int:
        nonlocal is_bad
        found = 0
        for _ in range(requests // 10):
            turns = 1 - stays if is_bad else (1 - stays) * chance / 0.3
            is_bad ^= dice.random() < turns
            found += sum(dice.random() < (0.3 if is_bad else 0.001) for _ in range(10))
        return found

    return misses


def verdict(
    base: Misses, candidate: Misses, *, base_requests: int = 200, blocks: int = 40
) -> tuple[str, int]:
    """Look after every block of a hundred; what was found first, and after how many."""
    test = SequentialTest()
    for block in range(1, blocks + 1):
        test = test.add(Block(base_requests, base(base_requests), 100, candidate(100)))
        if test.log_worse >= CERTAIN:
            return "Worse", block
        if test.log_better >= CERTAIN:
            return "Better", block
    return "", blocks


@pytest.mark.parametrize(
    ("misses", "base_requests"),
    [(independent, 100), (independent, 200), (bunched, 200), (bursts, 100)],
    ids=["independent", "two base pods", "bunched", "bursts"],
)
def test_equal_arms_are_rarely_told_apart(
    misses: Callable[[float, random.Random], Misses], base_requests: int
) -> None:
    """At most one of twenty A/A experiments gives a verdict, though it is asked forty times."""
    dice = random.Random(1)

    wrong = sum(
        verdict(misses(0.02, dice), misses(0.02, dice), base_requests=base_requests)[0] != ""
        for _ in range(400)
    )

    assert wrong / 400 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 400)


@pytest.mark.parametrize(
    "misses", [independent, partial(bunched, size=2.0)], ids=["independent", "in twos"]
)
def test_four_misses_of_a_hundred_against_one_are_found(
    misses: Callable[[float, random.Random], Misses],
) -> None:
    """A difference that matters comes out in most runs, and never the wrong way round."""
    dice = random.Random(2)

    found = [verdict(misses(0.01, dice), misses(0.04, dice), blocks=60)[0] for _ in range(60)]

    assert found.count("Worse") >= 45
    assert found.count("Better") == 0


def test_a_better_arm_is_found_too() -> None:
    """The same the other way round."""
    dice = random.Random(3)

    found = [
        verdict(independent(0.04, dice), independent(0.01, dice), blocks=60)[0] for _ in range(40)
    ]

    assert found.count("Better") >= 35
    assert found.count("Worse") == 0


def test_a_gross_failure_needs_no_more_than_three_blocks() -> None:
    """When half of the canary's requests miss, nobody waits for statistics."""
    dice = random.Random(4)

    found = [verdict(independent(0.01, dice), independent(0.5, dice)) for _ in range(20)]

    assert {name for name, _ in found} == {"Worse"}
    assert max(blocks for _, blocks in found) <= 3


def test_no_misses_are_no_evidence() -> None:
    """Two arms that never miss are not told apart, however long one looks."""
    test = SequentialTest()
    for _ in range(1000):
        test = test.add(Block(100, 0, 100, 0))

    assert test.log_worse == 0.0
    assert test.log_better == 0.0
