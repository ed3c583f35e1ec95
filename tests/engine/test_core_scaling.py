"""The model of more cores keeps to what was measured, and below what the memory gives."""

import pytest

from core_scaling import Point, Scaling

# 100 MB at 25 and 50 GB/s are 4 and 2 ms; the rest is 4 and 2, then 4 and 3.
PERFECT = Scaling(Point(0.008, 25), Point(0.004, 50), num_bytes=100_000_000, tokens=1)
HALF_SERIAL = Scaling(Point(0.008, 25), Point(0.005, 50), num_bytes=100_000_000, tokens=4)


@pytest.mark.parametrize("scaling", [PERFECT, HALF_SERIAL], ids=["perfect", "serial"])
def test_it_goes_through_both_measured_points(scaling: Scaling) -> None:
    """Beside a memory that gives two cores what each can read."""
    for cores, point in ((1, scaling.one), (2, scaling.two)):
        expected = scaling.tokens / point.seconds
        assert scaling.tokens_per_s(cores, gbps=50) == pytest.approx(expected)


def test_what_a_second_core_does_not_shorten_no_core_does() -> None:
    """Half of the rest: it is never done in less than two milliseconds."""
    assert HALF_SERIAL.serial == pytest.approx(0.5)
    assert HALF_SERIAL.tokens_per_s(10**6, gbps=1e6) == pytest.approx(4 / 0.002, rel=0.01)


def test_memory_is_a_floor() -> None:
    """100 MB at 100 GB/s take a millisecond, however many cores wait for them."""
    assert PERFECT.tokens_per_s(10**6, gbps=100) == pytest.approx(1000, rel=0.01)
    assert PERFECT.is_bound_by_memory(8, gbps=100)
    assert not PERFECT.is_bound_by_memory(4, gbps=100)


def test_cores_that_share_one_core_s_bandwidth_say_nothing_of_a_larger_memory() -> None:
    """Here a second core brings nothing, because one reads all that this memory gives."""
    starved = Scaling(Point(0.004, 25), Point(0.004, 25), num_bytes=100_000_000, tokens=1)

    assert starved.tokens_per_s(2, gbps=25) == pytest.approx(250)
    assert starved.tokens_per_s(8, gbps=200) == pytest.approx(2000)


def test_a_second_core_that_more_than_helps_is_taken_for_a_whole_one() -> None:
    """Two cores have two caches; noise does the same."""
    assert Scaling(Point(0.008, 25), Point(0.003, 25), 1, 1).serial == 0.0
    assert Scaling(Point(0.008, 25), Point(0.009, 25), 1, 1).serial == 1.0
