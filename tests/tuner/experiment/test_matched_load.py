"""Only what was asked alike is compared."""

import pytest

from paceline_tuner.experiment.tally import ArmTally, are_alike


def served(requests: int, seconds: float, *, prompt: int = 100, output: int = 50) -> ArmTally:
    return ArmTally(
        requests=requests,
        ended=requests,
        prompt_tokens=requests * prompt,
        served=requests,
        output_tokens=requests * output,
        pod_seconds=seconds,
    )


@pytest.mark.parametrize(
    ("requests", "alike"), [(100, True), (114, True), (116, False), (86, False)], ids=str
)
def test_loads_within_fifteen_percent_are_alike(requests: int, alike: bool) -> None:
    """Tokens per second and pod: two base pods serve twice the requests in twice the seconds."""
    assert are_alike(served(200, 200.0), served(requests, 100.0)) is alike


def test_longer_prompts_are_another_load() -> None:
    """As many requests, but half as many tokens again."""
    assert not are_alike(served(100, 100.0), served(100, 100.0, prompt=200))


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

    assert are_alike(served(100, 100.0), refusing)


def test_what_piles_up_was_offered_all_the_same() -> None:
    """Nor must one that lets requests wait."""
    piling = served(60, 100.0) + ArmTally(grown=40)

    assert are_alike(served(100, 100.0), piling)
    assert piling.goodput == pytest.approx(0.6)


def test_no_load_is_not_alike() -> None:
    """Nothing can be learned from an arm without traffic."""
    assert not are_alike(served(100, 100.0), ArmTally(pod_seconds=100.0))
    assert not are_alike(ArmTally(), ArmTally())
