"""How the loads of both arms compare, by what they were asked alone."""

import pytest

from paceline_tuner.experiment.tally import ArmTally, load_ratio


def served(requests: int, seconds: float, *, prompt: int = 100, output: int = 50) -> ArmTally:
    return ArmTally(
        requests=requests,
        ended=requests,
        prompt_tokens=requests * prompt,
        served=requests,
        output_tokens=requests * output,
        pod_seconds=seconds,
    )


@pytest.mark.parametrize("requests", [50, 100, 200], ids=str)
def test_load_is_tokens_per_second_and_pod(requests: int) -> None:
    """Two base pods serve twice the requests in twice the seconds."""
    found = load_ratio(served(200, 200.0), served(requests, 100.0))

    assert found == pytest.approx(requests / 100)


def test_longer_prompts_are_more_load() -> None:
    """As many requests, but two thirds more tokens."""
    found = load_ratio(served(100, 100.0), served(100, 100.0, prompt=200))

    assert found == pytest.approx(250 / 150)


def test_what_an_arm_refuses_was_offered_all_the_same() -> None:
    """A candidate that refuses half must not hide behind the smaller load that it serves."""
    refusing = ArmTally(
        requests=100,
        misses=50,
        ended=100,
        prompt_tokens=10_000,
        served=50,
        output_tokens=2_500,
        pod_seconds=100.0,
    )

    assert load_ratio(served(100, 100.0), refusing) == pytest.approx(1.0)


def test_what_piles_up_was_offered_all_the_same() -> None:
    """Nor must one that lets requests wait."""
    piling = served(60, 100.0) + ArmTally(grown=40)

    assert load_ratio(served(100, 100.0), piling) == pytest.approx(1.0)
    assert piling.goodput == pytest.approx(0.6)
