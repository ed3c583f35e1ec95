"""The planned load is what it says: its rate, its burstiness, its lengths, and repeatable."""

from itertools import pairwise
from random import Random
from statistics import mean, median, stdev

import pytest

from paceline_cli.traffic.arrivals import arrivals
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import OfferedLoad, TokenLengths, plan
from paceline_cli.traffic.prompts import excerpt

WORKLOAD = OfferedLoad(
    rate_rps=2.0,
    cv=2.5,
    prompt_tokens=TokenLengths(median=80, sigma=0.9, min=16, max=600),
    output_tokens=TokenLengths(median=20, sigma=0.5, min=4, max=64),
)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.5], ids=["smooth", "poisson", "bursty"])
def test_gaps_between_arrivals_have_the_asked_mean_and_variation(cv: float) -> None:
    """Burstiness is the coefficient of variation of the gaps."""
    times = arrivals(20_000, cv=cv, duration_s=10_000.0, random=Random(7))

    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert mean(gaps) == pytest.approx(0.5, rel=0.02)
    assert stdev(gaps) / mean(gaps) == pytest.approx(cv, rel=0.05)


def test_arrivals_without_variation_are_evenly_spaced() -> None:
    """A CV of 0 is a metronome."""
    assert arrivals(4, cv=0, duration_s=8.0, random=Random(0)) == [1.0, 3.0, 5.0, 7.0]


def test_every_block_carries_exactly_its_share() -> None:
    """Two phases of a run can be compared only under one load."""
    requests = plan(WORKLOAD, help_topics(), duration_s=90.0, seed=3)

    for start_s in (0.0, 30.0, 60.0):
        assert sum(start_s <= request.at_s < start_s + 30.0 for request in requests) == 60


def test_a_plan_is_cut_at_its_duration_and_ordered() -> None:
    """A phase ends when it says; arrivals never go back in time."""
    requests = plan(WORKLOAD, help_topics(), duration_s=45.0, seed=3)

    times = [request.at_s for request in requests]
    assert times == sorted(times)
    assert times[-1] < 45.0


def test_the_shortest_prompt_has_words() -> None:
    """An empty one is refused, and no load means that."""
    short = TokenLengths(median=8, sigma=0.0, min=8, max=8)
    many = OfferedLoad(rate_rps=500.0, cv=0, prompt_tokens=short, output_tokens=short)

    prompts = [each.prompt for each in plan(many, help_topics(), duration_s=30.0, seed=1)]

    assert min(len(prompt.split()) for prompt in prompts) > 0


def test_the_same_seed_plans_the_same_requests() -> None:
    """Arms of a comparison get the very same requests."""
    first, second, other = (
        plan(WORKLOAD, help_topics(), duration_s=30.0, seed=seed) for seed in (1, 1, 2)
    )

    assert first == second
    assert first != other


def test_lengths_are_log_normal_within_their_cut() -> None:
    """The median and the cut are as declared, and the long tail is there."""
    lengths = TokenLengths(median=100, sigma=0.8, min=20, max=800).spread(2001)

    assert median(lengths) == 100
    assert (min(lengths), max(lengths)) == (20, 800)
    assert lengths[int(0.8413 * 2001)] == pytest.approx(100 * 2.2255, rel=0.02)  # one sigma


def test_an_excerpt_is_about_as_long_as_asked_and_real_text() -> None:
    """Prompts are words of the corpus, not padding."""
    corpus = help_topics()

    text = excerpt(corpus, 200, Random(5))

    assert 600 < len(text) <= 800
    assert set(text.split()) <= set(corpus.split())


def test_a_prompt_longer_than_the_corpus_is_refused() -> None:
    """Rather than a prompt that silently is shorter than planned."""
    with pytest.raises(ValueError, match="a prompt of 50 tokens needs a corpus"):
        excerpt("too short", 50, Random(0))
