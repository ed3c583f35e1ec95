"""The whole loop against an engine without a model: real pacer, real decisions, a moved clock."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from paceline_sim.hardware import Disturbance
from paceline_testing.simulated import a_gpu, a_laptop, clients, then
from paceline_testing.trial import PERIOD_S, Trial
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, Range, TuningSpec

pytestmark = pytest.mark.slow


def reasons(report: ServiceReport) -> dict[str, tuple[str, str]]:
    return {c.type: (c.status, c.reason) for c in report.conditions}


def laptop_trial(sla: SLA, *, rate: float = 0.8, seed: int = 1, **circumstances: Any) -> Trial:
    engine = a_laptop(clients(rate, seed=seed), seed=seed, **circumstances)
    return Trial(engine, TuningSpec(sla=sla, config_hash="one"))


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_long_prompts_stop_stalling_gaps_within_three_periods(seed: int) -> None:
    """A budget of 2,048 makes gaps of seconds on a laptop; 300 ms must hold soon, and then stay."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0), seed=seed)

    trial.untuned(40)
    before = trial.slow_gaps(300.0, last_s=35)
    await trial.run(15)
    report = await trial.run(105)

    assert before > 0.02
    assert trial.slow_gaps(300.0, last_s=100) <= 0.01
    assert reasons(report)["SLAMet"] == ("True", "Meeting")
    assert report.pods[0].token_budget is not None
    assert report.pods[0].token_budget < 256


async def test_a_batch_too_large_for_the_tpot_is_cut_and_requests_keep_it() -> None:
    """Five requests a second would run sixty at once, far over 150 ms a token."""
    requests = clients(5.0, prompt=(8, 16), output=(32, 64))
    trial = Trial(
        a_laptop(requests, shed_ttft_ms=5000.0),
        TuningSpec(sla=SLA(tpot_p99_ms=150.0), config_hash="one"),
    )

    trial.untuned(40)
    before = trial.slow_requests(150.0, last_s=35)
    report = await trial.run(150)

    assert before > 0.2
    batch = report.pods[0].batch_size
    assert batch is not None
    assert 8 <= batch < 40
    assert trial.slow_requests(150.0, last_s=100) <= 0.02
    assert report.pods[0].binding == "SLA:tpot"


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_gpu_with_a_default_budget_is_brought_under_its_itl(seed: int) -> None:
    """8,192 tokens a step make gaps of 90 ms; 25 ms must hold with the prompts still served."""
    requests = clients(6, prompt=(300, 3000), output=(50, 300), seed=seed)
    spec = TuningSpec(sla=SLA(itl_p99_ms=25.0, ttft_p99_ms=1000.0), config_hash="one")
    trial = Trial(a_gpu(requests, seed=seed), spec)

    trial.untuned(30)
    before = trial.slow_gaps(25.0, last_s=25)
    await trial.run(10)
    report = await trial.run(75)

    assert before > 0.02
    assert trial.slow_gaps(25.0, last_s=70) <= 0.01
    assert reasons(report)["SLAMet"] == ("True", "Meeting")
    assert reasons(report)["SLAAchievable"] == ("True", "Achievable")
    assert report.pods[0].capacity_rps is not None
    assert report.pods[0].capacity_rps > 6


@pytest.mark.parametrize("seed", [1, 2])
async def test_steady_load_sees_at_most_six_changes_in_ten_minutes(seed: int) -> None:
    """Limits that swing cost more than they gain."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0), rate=0.6, seed=seed)
    await trial.run(60)
    settled = len(trial.changes)

    await trial.run(600)

    assert len(trial.changes) - settled <= 6
    assert trial.slow_gaps(300.0, last_s=115) <= 0.01


async def test_more_load_than_capacity_is_named_and_replicas_are_asked_for() -> None:
    """Past capacity no limit helps; the service must say what does."""
    sla = SLA(itl_p99_ms=300.0, ttft_p99_ms=3000.0)
    trial = laptop_trial(sla, rate=4.0, shed_ttft_ms=3000.0)

    report = await trial.run(90)

    assert reasons(report)["SLAAchievable"] == ("False", "CapacityExceeded")
    assert reasons(report)["SLAMet"][0] == "False"
    assert report.pods[0].phase == "Unattainable"
    assert report.recommended_replicas is not None
    assert 3 <= report.recommended_replicas <= 8
    assert trial.slow_gaps(300.0, last_s=50) <= 0.02


async def test_an_impossible_tpot_is_called_a_floor_and_service_goes_on() -> None:
    """One sequence alone takes 33 ms a token here: 15 ms cannot be, and starving helps nobody."""
    engine = a_laptop(clients(1.0, prompt=(16, 100)))
    trial = Trial(engine, TuningSpec(sla=SLA(tpot_p99_ms=15.0), config_hash="one"))

    report = await trial.run(120)

    assert reasons(report)["SLAAchievable"] == ("False", "TPOTFloor")
    assert (engine.finished_s > engine.now - 60).sum() >= 45
    assert engine.waiting < 5


async def test_no_traffic_is_unknown_and_changes_nothing() -> None:
    """Silence is neither kept nor broken."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0), rate=0.0)

    report = await trial.run(60)

    assert reasons(report)["SLAMet"] == ("Unknown", "NoTraffic")
    assert reasons(report)["TelemetryAvailable"] == ("True", "NoTraffic")
    assert report.pods[0].verdict == "Idle"
    assert (report.pods[0].batch_size, report.pods[0].token_budget) == (64, 2048)


async def test_lost_telemetry_freezes_the_limits() -> None:
    """Blind, the tuner must not act; seeing again, it goes on."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0))
    before = await trial.run(60)
    trial.pod.is_down = True

    blind = await trial.run(30)
    trial.pod.is_down = False
    after = await trial.run(10)

    assert blind.pods[0].phase == "Frozen"
    assert "no answer" in blind.pods[0].error
    assert reasons(blind)["TelemetryAvailable"] == ("False", "ScrapeFailed")
    assert reasons(blind)["TuningActive"] == ("False", "TelemetryLoss")
    assert blind.pods[0].batch_size == before.pods[0].batch_size
    assert after.pods[0].phase != "Frozen"


async def test_a_new_sla_reaches_the_pod_within_two_periods() -> None:
    """A user who applies a new p99 sees new limits at once, not after a cool-down."""
    trial = laptop_trial(SLA(itl_p99_ms=600.0))
    before = (await trial.run(90)).pods[0]
    trial.spec = replace(trial.spec, sla=SLA(itl_p99_ms=250.0), config_hash="two")

    report = await trial.run(10)

    assert report.acknowledged
    assert before.step_target_ms is not None
    assert report.pods[0].step_target_ms is not None
    assert report.pods[0].step_target_ms < 0.5 * before.step_target_ms
    assert report.pods[0].batch_size is not None
    assert before.batch_size is not None
    assert report.pods[0].batch_size < before.batch_size
    await trial.run(60)
    assert trial.slow_gaps(250.0, last_s=50) <= 0.015


async def test_a_restarted_engine_is_tuned_again() -> None:
    """A new instance comes with start-up limits and an empty model."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0))
    await trial.run(60)
    trial.restart(a_laptop(clients(0.8)))

    report = await trial.run(60)

    assert report.acknowledged
    assert trial.slow_gaps(300.0, last_s=40) <= 0.015


async def test_a_slower_neighbour_is_followed() -> None:
    """Steps that take a third longer must keep the same target with fewer tokens."""
    slower = Disturbance(90.0, math.inf, 1.35)
    trial = laptop_trial(SLA(itl_p99_ms=300.0), rate=0.5, disturbances=(slower,))

    await trial.run(180)

    assert trial.slow_gaps(300.0, last_s=50) <= 0.02


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda spec: replace(spec, mode="Observe"), "Observe"),
        (lambda spec: replace(spec, paused=True), "Paused"),
    ],
    ids=["observe", "paused"],
)
async def test_computed_limits_are_not_sent(
    change: Callable[[TuningSpec], TuningSpec], reason: str
) -> None:
    """The hot configuration still reaches the pod; its limits are the user's."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0))
    trial.spec = change(trial.spec)

    report = await trial.run(60)

    assert trial.changes == []
    assert report.acknowledged
    assert reasons(report)["TuningActive"] == ("False", reason)
    assert trial.decision.wanted is not None
    assert trial.decision.wanted.token_budget < 512


async def test_fixed_holds_the_initial_limits() -> None:
    """What a user pins stays pinned, whatever is measured."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0))
    trial.spec = replace(
        trial.spec,
        mode="Fixed",
        batch_size=Range(min=1, initial=6),
        token_budget=Range(min=64, initial=700),
    )

    report = await trial.run(60)

    assert (report.pods[0].batch_size, report.pods[0].token_budget) == (6, 700)
    assert report.pods[0].step_target_ms is None
    assert len(trial.changes) == 1


async def test_every_decision_explains_itself() -> None:
    """`paceline explain` shows inputs, prediction, limits and the constraint that bound."""
    trial = laptop_trial(SLA(itl_p99_ms=300.0))
    report = await trial.run(60)

    shown = trial.decision.as_dict()

    assert trial.decision.prediction.step_ms is not None
    assert "ITL target binds" in trial.decision.reason
    assert {"inputs", "prediction", "wanted", "chosen", "binding", "reason"} <= shown.keys()
    assert "state" not in shown
    assert report.history[0].reason
    assert report.history[0].from_batch_size != report.history[0].to_batch_size or (
        report.history[0].from_token_budget != report.history[0].to_token_budget
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_longer_prompts_are_answered_by_one_jump(seed: int) -> None:
    """The window still holds a minute of short prompts; what arrives now is what counts."""
    short = clients(10, prompt=(200, 400), output=(50, 150), seed=seed)
    long = clients(10, prompt=(800, 1600), output=(50, 150), start_s=240.0, seed=seed + 10)
    engine = a_gpu(then(short, long), seed=seed)
    trial = Trial(engine, TuningSpec(sla=SLA(itl_p99_ms=25.0), config_hash="one"))
    await trial.run(240)

    phases = []
    for _ in range(3):
        await trial.run(PERIOD_S)
        phases.append(trial.decision.phase)

    assert "Transition" in phases
    # Short prompts have a mean of 300; of the long ones the shorter end first.
    assert trial.decision.state.demand.prompt == pytest.approx(1200, rel=0.25)


async def test_a_slow_device_is_named_a_suspect() -> None:
    """The load is the same and steps take longer: whoever reads the decision looks at the node."""
    slower = Disturbance(240.0, math.inf, 1.5)
    trial = laptop_trial(SLA(itl_p99_ms=300.0), rate=0.5, disturbances=(slower,))
    await trial.run(240)
    before = trial.decision.inputs["degraded_hardware"]
    seen = []
    for _ in range(12):
        await trial.run(PERIOD_S)
        seen.append(trial.decision.inputs["degraded_hardware"])

    assert not before
    assert any(seen)
