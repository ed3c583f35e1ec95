"""End-to-end targets, and the quantile that the objective asks for: judged, planned, shown."""

import pytest

from paceline_operator.service_status import sla_status
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK
from paceline_testing.simulated import a_laptop, clients
from paceline_testing.telemetry import a_limits, a_request, a_telemetry
from paceline_testing.trial import Trial
from paceline_tuner.attainment import count, is_late, observe
from paceline_tuner.demand import ASSUMED
from paceline_tuner.end_to_end import token_room
from paceline_tuner.latency_sketch import LatencySketch
from paceline_tuner.output_lengths import Seen, lengths
from paceline_tuner.patch import sla_body
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.telemetry import RequestRecord
from paceline_tuner.window import Evidence, Window
from paceline_wire.limits import Limits

SIX_SECONDS = SLA(e2e_p99_ms=6000.0)


def lasted(seq: int, seconds: float, **fields: object) -> RequestRecord:
    at = 60.0 + seq / 10
    return a_request(seq, at, arrived_at=at - seconds, **fields)


def seen(records: list[RequestRecord]) -> Evidence:
    window = Window()
    window.add(a_telemetry(100.0, limits=a_limits(), requests=tuple(records)))
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


@pytest.mark.parametrize(
    ("seconds", "outcome", "late"),
    [(5.9, "ok", False), (6.1, "ok", True), (6.1, "cancelled", True), (5.9, "cancelled", False)],
    ids=["in time", "late", "left late", "left in time"],
)
def test_a_request_is_late_by_its_whole_time(seconds: float, outcome: str, late: bool) -> None:
    """A client that left after the target saw a miss."""
    assert is_late(SIX_SECONDS, lasted(1, seconds, outcome=outcome)) is late


def test_late_requests_are_counted_once() -> None:
    records = [lasted(n, 3.0) for n in range(98)]
    records += [lasted(98, 7.0), lasted(99, 7.0, outcome="shed", ttft_ms=None, tpot_ms=None)]

    counts = count(SIX_SECONDS, records, LatencySketch(()))

    assert (counts.requests, counts.missed_requests) == (100, 2)


def test_the_quantile_follows_the_objective() -> None:
    """Of 100 requests that last 1 to 100 tenths of a second."""
    evidence = seen([lasted(n, n / 10) for n in range(1, 101)])

    by_p99, _ = observe(SLA(e2e_p99_ms=9000.0), evidence)
    by_p95, _ = observe(SLA(e2e_p99_ms=9000.0, objective=0.95), evidence)

    assert by_p99.at_objective is None
    assert by_p99.promised.e2e_ms == pytest.approx(9900.0)
    assert by_p95.e2e_p99_ms == pytest.approx(9900.0)
    assert by_p95.promised.name == "p95"
    assert by_p95.promised.e2e_ms == pytest.approx(9500.0)


def test_without_a_target_the_whole_time_is_not_measured() -> None:
    found, _ = observe(SLA(ttft_p99_ms=500.0), seen([lasted(1, 3.0)]))

    assert found.e2e_p99_ms is None
    assert found.ttft_p99_ms == 400.0


def test_long_answers_are_those_of_the_objective() -> None:
    """Requests that still run are counted as far as they came."""
    ended = [Seen(0, tokens, has_ended=True) for tokens in range(1, 101)]

    assert lengths(ended).high == 99  # type: ignore[union-attr]  # some have ended
    assert lengths(ended, 0.9).high == 90  # type: ignore[union-attr]  # as above


def test_tokens_have_what_the_first_one_leaves() -> None:
    """A quarter is for the first token, or its own target where that is nearer."""
    tokens = ASSUMED.output_high - 1

    alone = token_room(SIX_SECONDS, ASSUMED, first_token_ms=100.0)
    nearer = token_room(SLA(ttft_p99_ms=500.0, e2e_p99_ms=6000.0), ASSUMED, first_token_ms=100.0)
    late = token_room(SIX_SECONDS, ASSUMED, first_token_ms=9000.0)

    assert alone is not None
    assert nearer is not None
    assert late is not None
    assert alone.queued_ms == pytest.approx((0.95 * 6000 - 1500) / tokens)
    assert nearer.queued_ms == pytest.approx((0.95 * 6000 - 500) / tokens)
    assert alone.at_once_ms == pytest.approx((0.95 * 6000 - 100) / tokens)
    assert (late.queued_ms, late.at_once_ms) == (0.0, 0.0)
    assert token_room(SLA(ttft_p99_ms=500.0), ASSUMED, first_token_ms=100.0) is None


def test_a_pod_of_before_is_not_told_of_a_target_that_there_is_not() -> None:
    """It refuses the unknown field; a newer one must be told that the target is gone."""
    assert "e2e_p99_ms" not in sla_body(SLA(ttft_p99_ms=500.0), knows_e2e=False)
    assert sla_body(SLA(ttft_p99_ms=500.0), knows_e2e=True)["e2e_p99_ms"] is None
    assert sla_body(SIX_SECONDS, knows_e2e=False)["e2e_p99_ms"] == 6000.0


def in_time(engine: SimulatedEngine, target_ms: float, *, last_s: float) -> int:
    """Count the requests of the last seconds, but for those just come, that kept the target."""
    jobs = engine.jobs
    chosen = (jobs["arrival_s"] >= engine.now - last_s) & (jobs["arrival_s"] < engine.now - 20)
    whole_ms = (jobs["last_s"] - jobs["arrival_s"]) * 1e3
    return int((chosen & (jobs["outcome"] == OK) & (whole_ms <= target_ms)).sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "prompt", "output", "target_ms", "best"),
    [
        (1.8, (8, 16), (32, 64), 6000.0, Limits(16, 64)),
        (0.8, (200, 500), (16, 48), 8000.0, Limits(4, 256)),
        (1.5, (200, 500), (16, 48), 8000.0, Limits(4, 2048)),
    ],
    ids=["short prompts", "long prompts", "more than it can serve"],
)
async def test_as_many_are_in_time_as_with_the_best_fixed_limits(
    rate: float,
    prompt: tuple[int, int],
    output: tuple[int, int],
    target_ms: float,
    best: Limits,
) -> None:
    """Of 19 pairs on a grid that were tried for each of these loads."""
    shed_ms = target_ms / 4
    trial = Trial(
        a_laptop(clients(rate, prompt=prompt, output=output), shed_ttft_ms=shed_ms),
        TuningSpec(sla=SLA(e2e_p99_ms=target_ms), config_hash="one"),
    )
    fixed = a_laptop(clients(rate, prompt=prompt, output=output), limits=best, shed_ttft_ms=shed_ms)

    report = await trial.run(300)
    fixed.run_until(300.0)

    assert in_time(trial.engine, target_ms, last_s=220) >= 0.97 * in_time(
        fixed, target_ms, last_s=220
    )
    assert report.observed.e2e_p99_ms is not None
    assert trial.decision.inputs["e2e_p99_ms"] is not None


@pytest.mark.slow
async def test_an_answer_that_cannot_end_in_time_is_called_a_floor() -> None:
    """Two hundred tokens take over six seconds, with nobody else on the pod."""
    trial = Trial(
        a_laptop(clients(0.3, prompt=(16, 100), output=(180, 220)), shed_ttft_ms=1000.0),
        TuningSpec(sla=SLA(e2e_p99_ms=4000.0), config_hash="one"),
    )

    report = await trial.run(150)

    found = next(c for c in report.conditions if c.type == "SLAAchievable")
    assert (found.status, found.reason) == ("False", "E2EFloor")


@pytest.mark.slow
async def test_status_shows_the_promised_quantile() -> None:
    """With an objective of 0.95 no p99 stands alone."""
    trial = Trial(
        a_laptop(clients(0.8, prompt=(200, 500), output=(16, 48)), shed_ttft_ms=2000.0),
        TuningSpec(sla=SLA(e2e_p99_ms=8000.0, objective=0.95), config_hash="one"),
    )

    status = sla_status(await trial.run(120))

    assert status.observed is not None
    assert status.observed.e2e_p99 is not None
    own = status.observed.at_objective
    assert own is not None
    assert own.quantile == "0.95"
    assert None not in {own.ttft, own.tpot, own.itl, own.e2e}
    assert trial.decision.inputs["e2e_p95_ms"] is not None
