"""A schedule found with the future known is played for real, and never below its start."""

from dataclasses import replace

import numpy as np
import pytest

from paceline_sim.hardware import Disturbance
from paceline_sim.requests import Requests
from tune_report import episode
from tune_report.arms.arm import static
from tune_report.arrivals import arrivals, pieces
from tune_report.mixes import CONVERSATION
from tune_report.schedule import Stage, search
from tune_report.score import score
from tune_report.settings import H100_ITL
from tune_report.workloads import PodPart, ReportWorkload, workload_named


def _busy_second_minute(random: np.random.Generator, unit_rps: float) -> tuple[PodPart, ...]:
    at_s = arrivals(random, pieces((0.0, 0.3 * unit_rps), (60.0, 1.2 * unit_rps)), 120.0)
    lanes = np.zeros(len(at_s), np.int8)
    return (PodPart(0.0, Requests(at_s, *CONVERSATION.draw(random, len(at_s)), lanes)),)


CHANGING = ReportWorkload(
    "changing",
    H100_ITL,
    _busy_second_minute,
    CONVERSATION,
    duration_s=120.0,
    disturbances=(Disturbance(60.0, 90.0, 1.3),),
)
RPS = 18.0


@pytest.mark.parametrize(
    "workload",
    [CHANGING, workload_named("H100 ITL 50: replicas 2-3-2", None)],
    ids=["one-pod", "a-pod-that-comes-and-goes"],
)
def test_one_pair_all_the_time_is_the_fixed_arm(workload: ReportWorkload) -> None:
    """Else a schedule would be compared with another simulation than the tuner is."""
    pair = (64, 512)

    found = search(Stage(workload, 1, RPS), pair, trials=1)

    assert found.pairs == (pair,) * round(workload.duration_s / 60.0)
    assert found.score == score(workload, episode.run(workload, static(*pair), 1, RPS))


def test_a_search_improves_on_its_start_and_what_it_claims_is_served() -> None:
    start = (32, 256)
    fixed = search(Stage(CHANGING, 1, RPS), start, trials=1).score

    found = search(Stage(CHANGING, 1, RPS), start, trials=60)

    assert found.trials <= 60
    assert found.score.good > fixed.good
    stage = Stage(CHANGING, 1, RPS)
    for minute, pair in enumerate(found.pairs):
        stage.play_minute(minute, pair)
    assert stage.score() == found.score


def test_a_search_ends_where_hardly_a_request_is_left_to_win() -> None:
    calm = replace(CHANGING, disturbances=())

    found = search(Stage(calm, 1, 0.5), (64, 512), trials=400)

    assert found.score.good == found.score.offered
    assert found.trials == 1
