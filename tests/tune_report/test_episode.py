import numpy as np

from paceline_tuner import decide
from paceline_tuner.guard import Guard
from tune_report.arms.arm import Arm
from tune_report.arms.table import arms, named
from tune_report.episode import PodRun, run
from tune_report.mixes import CONVERSATION
from tune_report.settings import H100_ITL
from tune_report.workloads import PodPart, steady, workloads

SHORT = steady(H100_ITL, 1.0, CONVERSATION, duration_s=30.0)


def served(arm: str) -> tuple[PodRun, ...]:
    return run(SHORT, named(arm), seed=1, unit_rps=6.0)


def same_parts(a: tuple[PodPart, ...], b: tuple[PodPart, ...]) -> bool:
    return len(a) == len(b) and all(
        np.array_equal(x.requests.arrival_s, y.requests.arrival_s)
        and np.array_equal(x.requests.prompt, y.requests.prompt)
        and np.array_equal(x.requests.output, y.requests.output)
        for x, y in zip(a, b, strict=True)
    )


def test_an_episode_is_the_same_whenever_it_is_played() -> None:
    first, second = served("ours")[0], served("ours")[0]

    assert first.moments == second.moments
    assert np.array_equal(first.step_ms, second.step_ms)


def test_ours_lowers_a_budget_that_breaks_the_itl_and_a_fixed_arm_never_moves() -> None:
    ours, fixed = served("ours")[0], served("default 1024/8192")[0]

    assert ours.moments[-1].budget < 8192
    assert ours.moments[-1].target_ms is not None
    assert fixed.moments == ()


def test_every_arm_is_offered_the_same_requests_and_ends_each() -> None:
    for arm in arms():
        run_ = served(arm)[0]
        assert len(run_.requests) == len(served("static 64/512")[0].requests)
        assert set(run_.outcome.tolist()) <= {1, 2}


def test_a_guard_is_off_for_an_episode_and_on_again_after_it() -> None:
    """An ablation that leaked would change every run after it in the same process."""
    whole = (Guard.apply, vars(Guard)["_settle"], vars(decide)["trim"])
    for arm in arms().values():
        with arm.patches():
            pass

    assert (Guard.apply, vars(Guard)["_settle"], vars(decide)["trim"]) == whole


def test_each_ablation_behaves_otherwise_than_the_whole() -> None:
    whole = served("ours")[0]
    for name in ("ours, no L0", "ours, no q_r", "ours, no rate limit"):
        run_ = served(name)[0]
        assert not np.array_equal(run_.step_ms, whole.step_ms), name


def test_workloads_give_the_same_requests_for_a_seed_and_others_for_another() -> None:
    for workload in workloads():
        assert same_parts(workload.parts(1, 4.0), workload.parts(1, 4.0)), workload.name
        assert not same_parts(workload.parts(1, 4.0), workload.parts(2, 4.0)), workload.name


def test_a_pod_that_is_added_serves_only_from_then_on() -> None:
    workload = next(w for w in workloads() if w.name.endswith("replicas 2-3-2"))
    parts = workload.parts(1, 4.0)

    assert [part.start_s for part in parts] == [0.0, 0.0, 160.0]
    assert parts[2].requests.arrival_s[0] >= 0.0
    assert parts[2].requests.arrival_s[-1] < 160.0


def test_start_limits_stay_within_what_a_pod_allocates() -> None:
    capacity = H100_ITL.capacity
    limits = Arm("huge", (10**6, 10**6)).limits(capacity)

    assert limits.max_batch_size == capacity.max_batch_size
    assert limits.token_budget == capacity.max_token_budget
