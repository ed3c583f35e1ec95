"""The forecast of a service's arrivals: what a ramp, a step and chance do to it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_tuner.arrival_trend import COUNTED_S, ArrivalTrend, ServiceArrivals

RATES = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=60)


def seen(rates: list[float], *, every_s: float = 5.0) -> ArrivalTrend:
    """One rate each five seconds."""
    trend = ArrivalTrend()
    for number, rate in enumerate(rates):
        trend = trend.seen(every_s * number, rate)
    return trend


def a_ramp(slope: float, *, start: float = 20.0, seconds: float = 300.0) -> list[float]:
    """What a minute's count shows of a rate that rises: that of half a minute ago."""
    at = np.arange(0.0, seconds, 5.0)
    return [float(start + slope * (each - COUNTED_S / 2)) for each in at]


def test_nothing_is_forecast_of_nothing() -> None:
    assert ArrivalTrend().ahead_rps(300.0) == 0.0


@given(rates=RATES, lead_s=st.floats(0.0, 600.0))
def test_a_forecast_is_at_most_twice_what_arrives(rates: list[float], lead_s: float) -> None:
    """Whatever was measured, an error asks for no more than twice the pods."""
    assert 0.0 <= seen(rates).ahead_rps(lead_s) <= 2 * rates[-1] + 1e-9


@given(rate=st.floats(0.0, 100.0), lead_s=st.floats(0.0, 600.0))
def test_a_steady_rate_is_forecast_as_it_is(rate: float, lead_s: float) -> None:
    assert seen([rate] * 60).ahead_rps(lead_s) == pytest.approx(rate)


@given(rates=RATES, lead_s=st.floats(0.0, 300.0), more_s=st.floats(0.0, 300.0))
def test_the_further_ahead_the_more(rates: list[float], lead_s: float, more_s: float) -> None:
    """A pod that takes longer to start is never asked for later."""
    trend = seen(rates)

    assert trend.ahead_rps(lead_s) <= trend.ahead_rps(lead_s + more_s) + 1e-9


@given(slope=st.floats(0.05, 0.2), lead_s=st.floats(30.0, 100.0))
def test_a_ramp_is_followed_to_where_it_leads(slope: float, lead_s: float) -> None:
    """Within the doubt that so few requests leave."""
    rates = a_ramp(slope)
    there = rates[-1] + slope * (lead_s + COUNTED_S / 2)

    assert 0.85 * min(there, 2 * rates[-1]) <= seen(rates).ahead_rps(lead_s) <= there + 1e-9


@given(slope=st.floats(0.05, 0.2), lead_s=st.floats(0.0, 300.0))
def test_a_fall_is_seen_at_once_and_not_carried_on(slope: float, lead_s: float) -> None:
    """The mean of four minutes would keep pods for two minutes longer."""
    rates = a_ramp(-slope, start=80.0)
    error = (rates[0] / COUNTED_S) ** 0.5

    assert rates[-1] <= seen(rates).ahead_rps(lead_s) <= rates[-1] + error


def test_a_fall_that_has_ended_is_over() -> None:
    """Steady again for two minutes and more: neither half of the points falls."""
    rates = [*a_ramp(-0.1, start=50.0), *[20.0] * 48]

    assert seen(rates).ahead_rps(60.0) == pytest.approx(20.0)


def test_a_step_is_not_taken_for_a_ramp_for_long() -> None:
    """Twice as many from one moment on: a minute's count rises for a minute, and then stays."""
    step = [10.0] * 48 + list(np.linspace(10.0, 20.0, 12)) + [20.0] * 48
    forecasts = [seen(step[:count]).ahead_rps(330.0) for count in range(48, len(step))]

    over = [forecast > 1.15 * 20.0 for forecast in forecasts]
    assert max(forecasts) <= 2 * 20.0
    assert sum(over) * 5.0 <= 90.0
    assert not any(over[-24:])


@given(seed=st.integers(0, 10_000), rate=st.floats(0.5, 50.0))
def test_chance_does_not_ask_for_a_third_more(seed: int, rate: float) -> None:
    """Requests that come independently at one rate, counted over a minute as the tuner does."""
    arrived = np.random.default_rng(seed).poisson(5 * rate, 72)
    counted = np.convolve(arrived, np.ones(12), mode="valid") / COUNTED_S

    deviation = (rate / COUNTED_S) ** 0.5
    assert seen(counted.tolist()).ahead_rps(60.0) <= 1.33 * rate + 4 * deviation


@given(seed=st.integers(0, 10_000), rate=st.floats(0.5, 50.0))
def test_chance_takes_no_more_than_a_fifth(seed: int, rate: float) -> None:
    """As above: a minute with few requests is no fall."""
    arrived = np.random.default_rng(seed).poisson(5 * rate, 72)
    counted = np.convolve(arrived, np.ones(12), mode="valid") / COUNTED_S

    deviation = (rate / COUNTED_S) ** 0.5
    assert seen(counted.tolist()).ahead_rps(60.0) >= 0.8 * rate - 3 * deviation


def test_a_pod_that_left_is_missed_until_the_others_show_its_requests() -> None:
    """Scaling in moves requests to the pods that stay: it is no fall and no rise."""
    arrivals, totals = ServiceArrivals(), []
    for number in range(40):
        now = 5.0 * number
        gone_s = now - 100.0
        part = 1.5 if gone_s < 0 else 1.5 + 0.75 * min(1.0, gone_s / COUNTED_S)
        pods = {"a": part, "b": part} | ({"c": 1.5} if gone_s < 0 else {})
        arrivals = arrivals.seen(pods, now)
        totals.append(arrivals.trend.points[-1][1])

    assert totals == pytest.approx([4.5] * 40, abs=1e-9)


def test_a_pod_without_telemetry_is_taken_to_be_like_the_others() -> None:
    arrivals = ServiceArrivals().seen({"a": 2.0, "b": 1.0, "c": None}, 0.0)

    assert arrivals.trend.points[-1][1] == pytest.approx(4.5)


def test_nothing_is_learned_where_no_pod_can_be_read() -> None:
    arrivals = ServiceArrivals().seen({"a": 2.0}, 0.0)

    assert arrivals.seen({"a": None}, 5.0) is arrivals


@given(before=st.lists(st.floats(0.01, 100.0), max_size=20), quiet=st.integers(1, 40))
def test_it_is_quiet_since_the_first_look_that_found_nothing(
    before: list[float], quiet: int
) -> None:
    """What was seen since then is nothing each time; what was before does not count."""
    assert seen([*before, *([0.0] * quiet)], every_s=10.0).quiet_s == min(10.0 * (quiet - 1), 240.0)


@given(rates=RATES)
def test_it_is_not_quiet_while_anything_arrives(rates: list[float]) -> None:
    assert seen([*rates, 0.01]).quiet_s == 0.0


def test_nobody_knows_of_quiet_who_has_not_looked() -> None:
    """Neither before the first look, nor between one that found requests and the next."""
    assert ArrivalTrend().quiet_s == 0.0
    assert ArrivalTrend().seen(0.0, 5.0).seen(200.0, 0.0).quiet_s == 0.0
