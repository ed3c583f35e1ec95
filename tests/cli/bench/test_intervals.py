"""The intervals are around the figures, need enough values, and know waiting neighbours."""

import math
import random
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_cli.bench.intervals import (
    Estimate,
    block_length,
    draws,
    least_count,
    least_count_of_bound,
)
from paceline_cli.traffic.record import percentile

latencies = st.lists(st.one_of(st.floats(0.1, 1e6), st.just(math.inf)), min_size=1, max_size=60)


@given(values=latencies, share=st.sampled_from([0.5, 0.9, 0.99]))
@settings(deadline=None, max_examples=60)
def test_a_quantile_is_the_nearest_rank_inside_its_interval(
    values: list[float], share: float
) -> None:
    """One definition of a percentile in all reports; infinite values are values."""
    (found,) = draws(len(values), num_draws=100).quantiles(values, range(len(values)), [share])

    assert found.value == percentile(values, share)
    assert found.low is not None
    assert found.high is not None
    assert min(values) <= found.low <= found.high <= max(values)


@given(values=st.lists(st.floats(0, 1e6), min_size=1, max_size=60))
@settings(deadline=None, max_examples=60)
def test_a_mean_lies_in_its_interval_where_all_values_do(values: list[float]) -> None:
    """A mean of equal values has no width."""
    found = draws(len(values), num_draws=100).mean(values)

    assert found.value == pytest.approx(mean(values))
    assert found.low is not None
    assert found.high is not None
    slack = 1e-9 * max(values)
    assert min(values) - slack <= found.low <= found.high <= max(values) + slack


def test_nothing_has_no_figure() -> None:
    """Rather than a zero."""
    nothing = draws(0)

    assert nothing.mean([]) == nothing.ratio([], []) == Estimate(None)
    assert nothing.quantiles([], [], [0.5]) == [Estimate(None)]


@pytest.mark.parametrize(("share", "count", "bound"), [(0.5, 2, 6), (0.99, 100, 368)])
def test_a_rank_and_its_upper_bound_need_values(share: float, count: int, bound: int) -> None:
    """Below the second number every value may lie under the true quantile."""
    assert (least_count(share), least_count_of_bound(share)) == (count, bound)
    assert share ** (bound - 1) > 0.025 >= share**bound


def test_neighbours_that_resemble_each_other_widen_the_interval() -> None:
    """A queue makes neighbours wait alike: as many requests then say less."""
    drawn = random.Random(4)
    runs = [drawn.gauss(0, 1) for _ in range(60)]
    alike = [value for value in runs for _ in range(8)]
    mixed = drawn.sample(alike, len(alike))

    widths = []
    for values in (alike, mixed):
        found = draws(len(values)).mean(values)
        assert found.low is not None
        assert found.high is not None
        widths.append(found.high - found.low)

    assert block_length(480) == 8
    assert widths[0] > 1.8 * widths[1]


def test_intervals_cover_as_often_as_they_say() -> None:
    """95 of 100 intervals of a median hold the true one, give or take."""
    drawn = random.Random(9)
    covered = 0
    for seed in range(200):
        values = [drawn.expovariate(1.0) for _ in range(200)]
        (found,) = draws(200, seed=seed, num_draws=200).quantiles(values, range(200), [0.5])
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= math.log(2) <= found.high

    assert covered >= 178
