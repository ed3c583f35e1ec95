"""A trace's mix of lengths, drawn anew."""

from random import Random

import pytest

from paceline_cli.plan.trace_demand import LengthBlocks, Stretch, mix, redrawn
from paceline_cli.traffic.traces import TracedRequest


def a_stretch() -> Stretch:
    """Ten minutes whose prompts grow."""
    random = Random(1)
    requests = tuple(
        TracedRequest(at / 4, 10 + at // 10, random.randint(1, 300)) for at in range(2400)
    )
    return Stretch(requests, 600.0)


def test_a_mix_is_drawn_anew_as_requests_are() -> None:
    """The same blocks in the same order, without their times."""
    stretch = a_stretch()

    for seed in range(5):
        by_lengths = LengthBlocks.of(stretch).redrawn_mix(Random(seed))

        by_requests = mix(redrawn(stretch, Random(seed)).requests)
        for name in by_requests.__dataclass_fields__:
            assert getattr(by_lengths, name) == pytest.approx(getattr(by_requests, name)), name


def test_a_mix_says_what_its_lengths_are() -> None:
    """By hand."""
    found = mix([TracedRequest(0.0, 10, 4), TracedRequest(1.0, 30, 8)])

    assert (found.prompt, found.prompt_p99, found.output) == (20.0, 10.0, 6.0)
    assert found.context == pytest.approx((4 * 12 + 8 * 34) / 12)
    assert found.held == 26.0
    assert found.held_deviation == pytest.approx(24 / 2**0.5)
