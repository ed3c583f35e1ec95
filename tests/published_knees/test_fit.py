"""The search that fits a device, and the committed fit."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from published_knees.cases import KNEE_4B, KNEE_70B
from published_knees.fit import fitted, off
from published_knees.results import AS_PUBLISHED, TUNED, Knee, read

WORST = {KNEE_70B.name: 0.15, KNEE_4B.name: 0.12}
"""How far any simulated figure may be from the published one."""
LEFT_OUT = 0.05
"""How far those may be that the search did not look at."""
KNEES = {knee.name: knee for knee in read().knees}


@given(st.floats(0.7, 1.4), st.floats(0.7, 1.4))
@settings(max_examples=25, deadline=None)
def test_the_search_finds_what_made_the_figures(first: float, second: float) -> None:
    """Two parameters that each move figures of their own and one together."""

    def figures(values: tuple[float, ...]) -> list[float]:
        return [values[0], values[1] ** 2, values[0] * values[1]]

    found = fitted((1.0, 1.0), lambda tried: off(figures(tried), figures((first, second))))

    assert off(figures(found), figures((first, second))) < 0.05


def test_equal_figures_are_not_off() -> None:
    assert off([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert off([math.e], [1.0]) == pytest.approx(1.0)


@pytest.mark.parametrize("name", KNEES)
def test_the_fit_meets_the_published_figures_as_stated(name: str) -> None:
    fit = KNEES[name].fit

    assert all(abs(each.off) <= WORST[name] for each in fit)
    assert all(abs(each.off) <= LEFT_OUT for each in fit if not each.is_fitted)


def test_the_committed_fit_gives_the_committed_figures() -> None:
    """Played again, the simulator says of the smallest cliff what the results say."""
    knee = KNEES[KNEE_4B.name]
    again = KNEE_4B.compare(tuple(knee.values.values()), True)

    assert [each.simulated for each in again] == pytest.approx(
        [each.simulated for each in knee.fit], rel=1e-3
    )


@pytest.mark.parametrize(("name", "load"), [(KNEE_70B.name, 50.0), (KNEE_4B.name, 10.0)])
def test_the_low_load_keeps_its_targets_as_published(name: str, load: float) -> None:
    """Each target on its own: an SLA that the published setting keeps before its knee."""
    knee: Knee = KNEES[name]
    calm = knee.at(load, AS_PUBLISHED)
    ttft_s = calm.ttft_p99_s if knee.objective > 0.9 else calm.ttft_p90_s
    tpot_ms = calm.tpot_p99_ms if knee.objective > 0.9 else calm.tpot_p90_ms

    assert ttft_s <= knee.ttft_ms / 1e3
    assert tpot_ms <= knee.tpot_ms


@pytest.mark.parametrize("name", KNEES)
def test_the_tuner_serves_more_within_the_targets_beyond_the_knee(name: str) -> None:
    knee = KNEES[name]
    most = max(each.load for each in knee.replays)

    assert knee.at(most, TUNED).good_per_s > 2 * knee.at(most, AS_PUBLISHED).good_per_s
