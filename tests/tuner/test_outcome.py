"""A change is judged by what its prediction said of the steps that then ran."""

from dataclasses import replace
from typing import Any

import pytest

from paceline_operator.metrics import Metrics
from paceline_testing.reports import a_pod_report, a_report
from paceline_testing.simulated import a_laptop, clients
from paceline_testing.telemetry import a_fit, a_limits, a_request, a_step, a_telemetry
from paceline_testing.trial import Trial
from paceline_tuner.outcome import PendingOutcome, Prediction, settle
from paceline_tuner.service_report import ChangeOutcome, PredictionCheck
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.telemetry import LimitValues, Load, Step
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.window import Evidence, Window

LIMITS = TunedLimits(16, 512, 200.0)
PENDING = PendingOutcome(
    at=50.0,
    since=100.0,
    epoch=3,
    limits=LIMITS,
    model=a_fit(theta=(30.0, 2.0, 0.0, 0.0, 0.0)),
    prediction=Prediction(step_ms=90.0, ttft_ms=1000.0, capacity_rps=2.0),
)
NEW = LimitValues(16, 512, 200.0)


def steps_after(**fields: Any) -> tuple[Step, ...]:
    """Eight decodes are predicted to take 46 ms; one before the change took a second."""
    base = {"wall_ms": 50.6, "epoch": 4} | fields
    return (
        a_step(1, 99.0, wall_ms=1000.0, epoch=3),
        *(a_step(2 + i, 100.5 + 0.1 * i, **base) for i in range(20)),
    )


def an_evidence(now: float = 105.0, **fields: Any) -> Evidence:
    window = Window()
    base = {"limits": a_limits(requested=NEW, epoch=4), "steps": steps_after()}
    window.add(a_telemetry(now, **base | fields))
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


def test_steps_are_compared_by_their_own_shapes() -> None:
    """A full batch was predicted; the half full one that ran must not make that look wrong."""
    outcome, pending = settle(PENDING, an_evidence(), LIMITS, 5.0)

    assert pending is None
    assert outcome is not None
    assert outcome.steps == 20
    assert outcome.step_ms is not None
    assert outcome.step_ms.predicted == pytest.approx(46.0)
    assert outcome.step_ms.error_ratio == pytest.approx(0.1)


@pytest.mark.parametrize(
    "evidence",
    [
        an_evidence(102.0),
        an_evidence(steps=steps_after(epoch=3)),
        an_evidence(steps=steps_after(clean=False)),
        an_evidence(load=Load(17, 0, 0)),
        an_evidence(steps=steps_after(running=17)),
    ],
    ids=["too-soon", "old-limits", "warm-up", "draining", "steps-while-draining"],
)
def test_a_period_that_is_not_clean_is_waited_out(evidence: Evidence) -> None:
    """Steps of other limits say nothing of these."""
    assert settle(PENDING, evidence, LIMITS, 5.0) == (None, PENDING)


def test_the_next_change_ends_the_wait() -> None:
    """What was predicted of limits that hold no more cannot be measured."""
    assert settle(PENDING, an_evidence(), replace(LIMITS, batch_size=8), 5.0) == (None, None)
    assert settle(PENDING, an_evidence(170.0), LIMITS, 5.0) == (None, None)


def test_first_tokens_and_capacity_are_compared_where_they_show() -> None:
    """Capacity shows only while the queue never empties."""
    requests = tuple(a_request(50 + i, 104.0, arrived_at=101.0, ttft_ms=1200.0) for i in range(5))
    queued = an_evidence(requests=requests, steps=steps_after(waiting=2))
    idle = an_evidence(requests=requests)

    seen, _ = settle(PENDING, queued, LIMITS, 5.0)
    unseen, _ = settle(PENDING, idle, LIMITS, 5.0)

    assert seen is not None
    assert seen.ttft_ms == PredictionCheck(1000.0, 1200.0, 1200 / 1000 - 1)
    assert seen.capacity_rps == PredictionCheck(2.0, 1.0, -0.5)
    assert unseen is not None
    assert unseen.capacity_rps is None


async def test_changes_of_a_whole_loop_get_their_outcome() -> None:
    """Kept with the decision that learned it, and near what was predicted."""
    trial = Trial(a_laptop(clients(0.8)), TuningSpec(sla=SLA(itl_p99_ms=300.0), config_hash="one"))

    await trial.run(120)

    decisions = trial.loop.explain("ns/name", "pod")
    outcomes = [decision.outcome for decision in decisions if decision.outcome is not None]
    changed_at = {decision.at for decision in decisions if decision.change is not None}
    bound = [(d.change.binding, d.binding) for d in decisions if d.change is not None]
    assert outcomes
    assert all(of_change == of_decision != "" for of_change, of_decision in bound)
    assert all(outcome.of in changed_at for outcome in outcomes)
    errors = [abs(o.step_ms.error_ratio) for o in outcomes if o.step_ms is not None]
    assert max(errors) < 0.5
    shown = next(d.as_dict()["outcome"] for d in decisions if d.outcome is not None)
    assert isinstance(shown, dict)
    assert shown["step_ms"]["error_ratio"] == outcomes[0].step_ms.error_ratio  # type: ignore[union-attr]  # asserted above


def test_prediction_errors_are_counted_by_quantity() -> None:
    """A model that is wrong in one direction shows as much as one that is wrong in the other."""
    metrics = Metrics()
    outcome = ChangeOutcome(of=1.0, steps=20, step_ms=PredictionCheck(100.0, 80.0, -0.2))

    metrics.count_outcomes(a_report(pods=(a_pod_report(outcome=outcome), a_pod_report())))

    labels = {"quantity": "step"}
    name = "paceline_operator_prediction_error_ratio"
    assert metrics.registry.get_sample_value(f"{name}_count", labels) == 1
    assert metrics.registry.get_sample_value(f"{name}_sum", labels) == pytest.approx(0.2)
