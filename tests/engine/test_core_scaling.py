"""The model of more cores keeps to what was measured, and below what the memory gives."""

import pytest

from core_scaling import Scaling

PERFECT = Scaling(one_s=0.008, two_s=0.004, num_bytes=100_000_000, tokens=1)
HALF_SERIAL = Scaling(one_s=0.008, two_s=0.006, num_bytes=100_000_000, tokens=4)


@pytest.mark.parametrize("scaling", [PERFECT, HALF_SERIAL], ids=["perfect", "serial"])
def test_it_goes_through_both_measured_points(scaling: Scaling) -> None:
    for cores, seconds in ((1, scaling.one_s), (2, scaling.two_s)):
        assert scaling.tokens_per_s(cores, gbps=1e6) == pytest.approx(scaling.tokens / seconds)


def test_what_a_second_core_does_not_shorten_no_core_does() -> None:
    """Half of the time: 64 cores are less than twice as fast."""
    assert HALF_SERIAL.serial == pytest.approx(0.5)
    assert HALF_SERIAL.tokens_per_s(64, gbps=1e6) < 2 * HALF_SERIAL.tokens_per_s(1, gbps=1e6)


def test_memory_is_a_floor() -> None:
    """100 MB at 100 GB/s take a millisecond, however many cores wait for them."""
    assert PERFECT.tokens_per_s(64, gbps=100) == pytest.approx(1000)
    assert PERFECT.is_bound_by_memory(64, gbps=100)
    assert not PERFECT.is_bound_by_memory(4, gbps=100)


def test_a_second_core_that_more_than_helps_is_taken_for_a_whole_one() -> None:
    """Two cores have two caches; noise does the same."""
    assert Scaling(0.008, 0.003, 1, 1).serial == 0.0
    assert Scaling(0.008, 0.009, 1, 1).serial == 1.0
