"""Arms that are offered different loads: what load explains is not held against the candidate."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_tuner.experiment.sequential import Block, SequentialTest

CERTAIN = math.log(3 / 0.05)
LEVEL = 0.05
RUNS = 120
TOLERATED = LEVEL + 2 * math.sqrt(LEVEL * (1 - LEVEL) / RUNS)

Ratio = Callable[[random.Random], float]


def by_chance(dice: random.Random) -> float:
    """As when a hundred requests of very different lengths fall to either pod by chance."""
    return math.exp(dice.gauss(0.0, 0.2))


def steadily(dice: random.Random) -> float:
    return 1.3 * math.exp(dice.gauss(0.0, 0.1))


def the_other_way(dice: random.Random) -> float:
    return 1 / steadily(dice)


def misses(requests: int, chance: float, dice: random.Random) -> int:
    return sum(dice.random() < chance for _ in range(requests))


def a_block(
    ratio: float, dice: random.Random, *, rate: float, steepness: float, worse: float
) -> Block:
    """A hundred requests of each arm; misses grow as a power of the load."""
    base = min(0.9, rate * ratio ** (-steepness / 2))
    candidate = min(0.9, worse * rate * ratio ** (steepness / 2))
    return Block(100, misses(100, base, dice), 100, misses(100, candidate, dice), ratio)


def verdict(
    ratio: Ratio,
    dice: random.Random,
    *,
    rate: float = 0.03,
    steepness: float,
    worse: float = 1.0,
    blocks: int = 40,
) -> tuple[str, int]:
    """Look half way through each block and at its end; what was found first, and when."""
    test = SequentialTest()
    for number in range(1, blocks + 1):
        block = a_block(ratio(dice), dice, rate=rate, steepness=steepness, worse=worse)
        begun = Block(50, block.base_misses // 2, 50, block.candidate_misses // 2, block.load_ratio)
        peeked, test = test.look(begun), test.add(block)
        for seen in (peeked, test):
            if seen.log_worse >= CERTAIN:
                return "Worse", number
            if seen.log_better >= CERTAIN:
                return "Better", number
    return "", blocks


@pytest.mark.slow
@pytest.mark.parametrize("steepness", [0.0, 3.0, 8.0], ids=str)
@pytest.mark.parametrize("ratio", [by_chance, steadily, the_other_way])
def test_equal_candidates_under_unequal_load_are_rarely_told_apart(
    ratio: Ratio, steepness: float
) -> None:
    """At most one of twenty, however steeply misses grow with load, and asked eighty times."""
    dice = random.Random(1)

    wrong = sum(verdict(ratio, dice, steepness=steepness)[0] != "" for _ in range(RUNS))

    assert wrong / RUNS <= TOLERATED


def test_without_an_allowance_the_heavier_loaded_arm_would_be_blamed() -> None:
    """The scenarios above are hard: a test that took the loads for equal would fail them."""
    dice = random.Random(2)
    test = SequentialTest()

    for _ in range(40):
        test = test.add(a_block(steadily(dice), dice, rate=0.03, steepness=6.0, worse=1.0))

    assert test.log_apart >= CERTAIN
    assert test.log_worse < CERTAIN


@pytest.mark.parametrize(
    ("ratio", "blocks"),
    [(by_chance, 5), (steadily, 20), (the_other_way, 3)],
    ids=["by chance", "steadily", "the other way"],
)
def test_a_grossly_worse_candidate_is_called_in_a_few_blocks(ratio: Ratio, blocks: int) -> None:
    """Two of a hundred miss at the base, and thirty times as many at the candidate.

    A candidate that bears a third more load all the time takes longer: eight times the misses
    may be due to it.
    """
    dice = random.Random(3)

    found = [verdict(ratio, dice, rate=0.02, steepness=1.0, worse=30.0) for _ in range(50)]

    assert [name for name, _ in found].count("Worse") == len(found)
    assert sorted(number for _, number in found)[44] <= blocks  # nine of ten


def test_four_times_the_misses_are_found_although_loads_differ() -> None:
    dice = random.Random(4)

    found = [
        verdict(by_chance, dice, rate=0.02, steepness=2.0, worse=4.0, blocks=60)[0]
        for _ in range(40)
    ]

    assert found.count("Worse") >= 30
    assert found.count("Better") == 0


def block_of(base: tuple[int, int], candidate: tuple[int, int], ratio: float) -> Block:
    return Block(base[0], base[1], candidate[0], candidate[1], ratio)


counts = st.integers(1, 500).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
blocks = st.builds(block_of, counts, counts, st.floats(1e-4, 1e4))


def gathered(given_blocks: list[Block]) -> SequentialTest:
    test = SequentialTest()
    for block in given_blocks:
        test = test.add(block)
    return test


@settings(deadline=None)
@given(st.lists(blocks, max_size=8))
def test_the_arms_are_treated_alike(given_blocks: list[Block]) -> None:
    """With the arms exchanged, worse is better."""
    turned = [
        Block(
            block.candidate_requests,
            block.candidate_misses,
            block.base_requests,
            block.base_misses,
            1 / block.load_ratio,
        )
        for block in given_blocks
    ]

    assert gathered(turned).log_better == pytest.approx(gathered(given_blocks).log_worse, abs=1e-6)
    assert gathered(turned).log_worse == pytest.approx(gathered(given_blocks).log_better, abs=1e-6)


@settings(deadline=None)
@given(st.lists(blocks, max_size=8))
def test_allowing_for_load_never_adds_evidence(given_blocks: list[Block]) -> None:
    """And what is found stays finite, however odd the loads."""
    test = gathered(given_blocks)

    assert math.isfinite(test.log_worse)
    assert math.isfinite(test.log_better)
    assert max(test.log_worse, test.log_better) <= test.log_apart


@settings(deadline=None)
@given(st.lists(blocks, max_size=4), blocks)
def test_a_look_leaves_the_test_as_it_is(given_blocks: list[Block], begun: Block) -> None:
    test = gathered(given_blocks)
    before = test.log_worse, test.log_better

    looked = test.look(begun)

    assert (test.log_worse, test.log_better) == before
    assert looked.dispersion == test.dispersion


@settings(deadline=None)
@given(st.lists(blocks, max_size=8), st.integers(1, 500), st.floats(1e-3, 1e3))
def test_where_nothing_is_missed_nothing_is_learned(
    given_blocks: list[Block], requests: int, ratio: float
) -> None:
    test = gathered(given_blocks)

    after = test.look(Block(requests, 0, requests, 0, ratio))

    assert after.log_worse == pytest.approx(test.log_worse)
    assert after.log_better == pytest.approx(test.log_better)
