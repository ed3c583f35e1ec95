"""The least error that noise leaves is what theory says of it."""

import math

import pytest

from paceline_sim.hardware import Noise
from tune_report.noise_floor import in_words, noise_floor


@pytest.mark.parametrize("correlation", [0.0, 0.7], ids=["no-memory", "memory"])
def test_the_floor_is_that_of_a_normal_innovation(correlation: float) -> None:
    """The mean absolute error of small log-normal noise is sqrt(2/pi) deviations."""
    sigma = 0.05
    floor = noise_floor(Noise(sigma, correlation, spike_chance=0.0))

    innovation = sigma * math.sqrt(1 - correlation**2)
    assert floor.by_table == pytest.approx(sigma * math.sqrt(2 / math.pi), rel=0.03)
    assert floor.by_last == pytest.approx(innovation * math.sqrt(2 / math.pi), rel=0.03)


def test_spikes_raise_the_floor_and_are_not_foretold() -> None:
    """They are drawn anew in every step."""
    calm = noise_floor(Noise(0.05, 0.7, spike_chance=0.0))
    spiked = noise_floor(Noise(0.05, 0.7, spike_chance=0.02))

    assert spiked.by_last > calm.by_last + 0.005
    assert f"{spiked.by_last:.1%}" in in_words(Noise(0.05, 0.7, spike_chance=0.02))
