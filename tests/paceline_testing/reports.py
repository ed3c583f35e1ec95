"""Builders of what the tuner concludes."""

from dataclasses import replace
from typing import Any

from paceline_cli.local_state import Explained
from paceline_tuner.outcome import Prediction
from paceline_tuner.service_report import LimitsChange, MeasuredLatency, PodReport, ServiceReport
from paceline_tuner.tuned_limits import TunedLimits


def observed(**changes: Any) -> MeasuredLatency:
    """An SLA that is met."""
    meeting = MeasuredLatency(
        ttft_p99_ms=900.0, tpot_p99_ms=80.0, itl_p99_ms=300.0, samples=60, attainment=0.995
    )
    return replace(meeting, **changes)


def a_change(**changes: Any) -> LimitsChange:
    """The tuner cut the token budget."""
    cut = LimitsChange(
        at=1_700_000_000.0,
        pod="quickstart-0",
        from_batch_size=32,
        from_token_budget=2048,
        to_batch_size=32,
        to_token_budget=160,
        reason="ITL binds",
    )
    return replace(cut, **changes)


def a_pod_report(**changes: Any) -> PodReport:
    """One pod that meets its SLA after one change."""
    report = PodReport(
        name="quickstart-0",
        node="here",
        batch_size=32,
        token_budget=160,
        step_target_ms=320.0,
        running=4,
        waiting=1,
        observed=observed(),
        phase="Tracking",
        binding="SLA:itl",
        verdict="Meeting",
        reason="the largest budget whose step keeps the ITL target",
        predicted_step_ms=290.0,
        model_mape=0.061,
        last_change=a_change(),
        capacity_rps=2.5,
        arrival_rps=1.2,
        acknowledged_hash="abc",
        error="",
    )
    return replace(report, **changes)


def a_report(**changes: Any) -> ServiceReport:
    """One tick's conclusion over one pod."""
    report = ServiceReport(
        key="default/quickstart",
        at=1_700_000_010.0,
        observed=observed(),
        capacity_rps=2.5,
        utilization=0.48,
        recommended_replicas=1,
        conditions=(),
        pods=(a_pod_report(),),
        history=(a_change(),),
        acknowledged=True,
    )
    return replace(report, **changes)


def an_explained(**changes: Any) -> Explained:
    """The decision to cut the token budget."""
    decision = Explained(
        at=1_700_000_000.0,
        pod="quickstart-0",
        mode="Auto",
        phase="Tracking",
        verdict="Violating",
        binding="SLA:itl",
        reason="the ITL target binds",
        inputs={"running": 4, "arrival_rps": 1.23456, "itl_p99_ms": 812.0, "tpot_p99_ms": None},
        prediction=Prediction(step_ms=290.0, ttft_ms=1500.0, capacity_rps=2.5),
        current=TunedLimits(32, 2048, None),
        wanted=TunedLimits(32, 150, 310.0),
        chosen=TunedLimits(32, 160, 320.0),
        applied=True,
        reason_subject="BatchSize",
    )
    return replace(decision, **changes)
