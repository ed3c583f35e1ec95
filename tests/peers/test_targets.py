"""Whether ours is as fast beside a peer as is wanted."""

import math

import pytest

from peers.rows import ROWS, groups
from peers.targets import OURS_BESIDE, RATE, TARGETS, Figure, Target, judged, ratios
from serving_workload import Figures

FASTER = Target("vllm", RATE, 1.2)
SOONER = Target("vllm", "ttft_p99_ms", 1.0)


def a_run(*, rate: float = 100.0, ttft_p99_ms: float = 1000.0) -> Figures:
    return Figures(rate, 500.0, ttft_p99_ms, 100.0, 120.0)


@pytest.mark.parametrize(
    ("target", "ratio", "verdict"),
    [
        (FASTER, 1.2, "met"),
        (FASTER, 1.199, "missed"),
        (FASTER, math.nan, "missed"),
        (FASTER, None, "not run"),
        (SOONER, 0.999, "met"),
        (SOONER, 1.0, "missed"),
        (SOONER, math.nan, "missed"),
    ],
)
def test_a_rate_reaches_its_bound_and_a_time_stays_below(
    target: Target, ratio: float | None, verdict: str
) -> None:
    assert target.verdict(ratio) == verdict


def test_the_median_of_the_ratios_is_judged_and_not_the_ratio_of_the_medians() -> None:
    """Noise that lasts for one repeat slows both of its runs."""
    runs = {
        "paceline": [a_run(rate=130), a_run(rate=65), a_run(rate=260)],
        "vllm": [a_run(rate=100), a_run(rate=50), a_run(rate=400)],
    }

    (found,) = judged(runs, [FASTER])

    assert ratios(runs, "vllm", RATE) == (1.3, 1.3, 0.65)
    assert found.ratio == pytest.approx(1.3)
    assert found.verdict == "met"


def test_a_shorter_time_of_ours_is_a_ratio_below_one() -> None:
    runs = {"paceline": [a_run(ttft_p99_ms=900)], "vllm": [a_run(ttft_p99_ms=1000)]}

    (found,) = judged(runs, [SOONER])

    assert found.ratio == pytest.approx(0.9)
    assert found.verdict == "met"


@pytest.mark.parametrize("present", ["paceline", "vllm"])
def test_a_target_is_not_run_without_either_of_the_two(present: str) -> None:
    (found,) = judged({present: [a_run()]}, [FASTER])

    assert (found.ratio, found.verdict) == (None, "not run")


def test_each_row_has_its_name_alone() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_a_peer_is_compared_with_ours_of_the_same_kind_of_decoding() -> None:
    """A draft would otherwise be measured against none."""
    rows = {row.name: row for row in ROWS}

    for peer, ours in OURS_BESIDE.items():
        assert rows[ours].engine == "Paceline"
        assert rows[ours].lookup == rows[peer].lookup or rows[peer].engine == "Paceline"


def test_every_target_is_of_a_peer_that_is_compared() -> None:
    assert {target.peer for target in TARGETS} <= OURS_BESIDE.keys()


@pytest.mark.parametrize(
    "figure", ["output_tokens_per_s", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms"]
)
@pytest.mark.parametrize("peer", ["vllm", "openvino"])
def test_both_defaults_have_a_target_on_the_rate_and_on_each_latency(
    peer: str, figure: Figure
) -> None:
    assert [t for t in TARGETS if (t.peer, t.figure) == (peer, figure)]


def test_what_is_compared_runs_in_turn() -> None:
    """A peer that ran half an hour after ours saw another machine."""
    group_of = {row.name: index for index, group in enumerate(groups(ROWS)) for row in group}

    assert all(group_of[peer] == group_of[ours] for peer, ours in OURS_BESIDE.items())
    assert sorted(group_of) == sorted(row.name for row in ROWS)
