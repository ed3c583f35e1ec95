"""The batch lane's own SLA: what is asked of the engine for it, and how it is judged."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import UNSET

from paceline_testing.telemetry import a_limits, a_request, a_step, a_telemetry
from paceline_tuner.lanes import batch_report, judged, with_batch_limits
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, LimitValues, RequestRecord, Telemetry
from paceline_tuner.window import Evidence, Window

PEOPLE = SLA(ttft_p99_ms=2000.0, itl_p99_ms=100.0)
BATCH = SLA(ttft_p99_ms=60_000.0, tpot_p99_ms=400.0)
SPEC = TuningSpec(sla=PEOPLE, batch_sla=BATCH, config_hash="one")
RENEWAL: dict[str, object] = {"epoch": 3, "lease_s": 60.0}


def a_window(
    limits: LimitsAnswer | None = None, requests: tuple[RequestRecord, ...] = ()
) -> Evidence:
    window = Window()
    window.add(
        a_telemetry(
            100.0,
            limits=limits or knowing(None),
            requests=tuple(sorted(requests, key=lambda r: r.finished_at)),
            steps=tuple(a_step(n, 60.0 + n / 10) for n in range(300)),
        )
    )
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


def knowing(batch_step_target_ms: float | None) -> LimitsAnswer:
    held = LimitValues(16, 512, 100.0, batch_step_target_ms=batch_step_target_ms)
    return a_limits(requested=held, effective=held, certified=held)


def lane_requests(lane: str, count: int, first: int, **fields: Any) -> tuple[RequestRecord, ...]:
    return tuple(a_request(first + n, 70.0 + n / 10, lane=lane, **fields) for n in range(count))


def test_the_batch_lane_is_given_a_target_by_its_own_sla() -> None:
    """400 ms per token allow more than the people's quarter of 2 s would, which then holds."""
    body = with_batch_limits(dict(RENEWAL), SPEC, a_window(), trim=1.0)
    wide = replace(SPEC, sla=SLA(itl_p99_ms=100.0))
    free = with_batch_limits(dict(RENEWAL), wide, a_window(), trim=1.0)

    assert body == {"epoch": 4, "lease_s": 60.0, "batch_step_target_ms": pytest.approx(418.0)}
    assert free["batch_step_target_ms"] == pytest.approx(400.0 * 0.95 * 1.1)


def test_who_arrives_never_waits_long_for_a_step_of_the_batch_lane() -> None:
    """A quarter of the people's first token at most, whatever the batch lane would allow."""
    spec = replace(SPEC, sla=SLA(ttft_p99_ms=400.0), batch_sla=SLA(ttft_p99_ms=60_000.0))

    body = with_batch_limits(dict(RENEWAL), spec, a_window(), trim=1.0)

    assert body["batch_step_target_ms"] == 100.0


@pytest.mark.parametrize(
    ("held", "spec", "is_sent"),
    [
        (410.0, SPEC, False),
        (300.0, SPEC, True),
        (None, replace(SPEC, batch_sla=None), False),
        (300.0, replace(SPEC, batch_sla=None), True),
    ],
    ids=["near enough", "moved", "nothing to say", "withdrawn"],
)
def test_a_target_is_sent_when_it_moves(
    held: float | None, spec: TuningSpec, is_sent: bool
) -> None:
    """Each change is an epoch; a model that wavers must not make one."""
    body = with_batch_limits(dict(RENEWAL), spec, a_window(knowing(held)), trim=1.0)

    assert ("batch_step_target_ms" in body) is is_sent
    assert body["epoch"] == 3 + is_sent
    assert spec.batch_sla or not is_sent or body["batch_step_target_ms"] is None


def test_an_engine_that_does_not_know_the_field_is_not_sent_it() -> None:
    """It would refuse the whole change."""
    assert with_batch_limits(dict(RENEWAL), SPEC, a_window(a_limits()), trim=1.0) == RENEWAL


def test_each_lane_is_judged_by_its_own_targets_and_requests() -> None:
    """Batch answers that people would find too slow are fine, and spoil no verdict of people."""
    evidence = a_window(
        requests=(
            *lane_requests("interactive", 200, 0),
            *lane_requests("batch", 100, 500, ttft_ms=30_000.0, tpot_ms=300.0),
        )
    )

    report = batch_report(SPEC, [evidence, evidence])

    assert report is not None
    assert report.verdict == "Meeting"
    assert (report.observed.samples, report.observed.ttft_p99_ms) == (200, 30_000.0)
    assert {r.lane for r in judged(SPEC, evidence).requests} == {"interactive"}
    assert judged(replace(SPEC, batch_sla=None), evidence) is evidence


def test_a_batch_lane_that_misses_is_said_to() -> None:
    """Also where people are served well."""
    late = lane_requests("batch", 100, 500, tpot_ms=900.0)

    report = batch_report(SPEC, [a_window(requests=late)])

    assert report is not None
    assert report.verdict == "Violating"
    assert report.observed.attainment == 0.0


def test_without_targets_of_its_own_there_is_no_verdict_on_the_batch_lane() -> None:
    """It is part of the declared SLA's."""
    assert batch_report(TuningSpec(sla=PEOPLE), [a_window()]) is None


class OnePod:
    """Answers with one telemetry and keeps what it is sent."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self.bodies: list[Mapping[str, object]] = []

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        del pod, since
        return self.telemetry

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        del pod
        self.bodies.append(body)
        return knowing(None)


@pytest.mark.parametrize(
    ("batch", "may_pause"),
    [
        (SLA(ttft_p99_ms=60_000.0), True),
        (SLA(ttft_p99_ms=60_000.0, tpot_p99_ms=400.0), False),
        (SLA(ttft_p99_ms=60_000.0, itl_p99_ms=400.0), False),
        (SLA(ttft_p99_ms=60_000.0, e2e_p99_ms=90_000.0), False),
        (None, False),
    ],
    ids=["first tokens", "tokens", "gaps", "whole answers", "nothing of its own"],
)
def test_the_batch_lane_may_pause_where_it_promises_first_tokens_alone(
    batch: SLA | None,
    may_pause: bool,
) -> None:
    """Told once; and never to an engine that has not said that it knows how to."""
    spec = replace(SPEC, batch_sla=batch)
    sent = {}
    for held in (True, False, None, UNSET):
        values = LimitValues(16, 512, 100.0, batch_step_target_ms=None, may_pause_batch=held)
        limits = a_limits(requested=values, effective=values, certified=values)
        body = with_batch_limits(dict(RENEWAL), spec, a_window(limits), trim=1.0)
        sent[held] = body.get("may_pause_batch")

    assert sent == {may_pause: None, not may_pause: may_pause, None: None, UNSET: None}


async def test_a_tick_sends_the_batch_target_and_reports_the_lane() -> None:
    """With the configuration that a pod has not acknowledged yet."""
    spec = replace(SPEC, config_hash="two")
    batch = lane_requests("batch", 50, 500, ttft_ms=30_000.0, tpot_ms=300.0)
    pod = OnePod(
        a_telemetry(
            100.0,
            limits=knowing(None),
            requests=batch,
            steps=tuple(a_step(n, 60.0 + n / 10) for n in range(300)),
        )
    )
    target = ServiceTarget("ns/name", spec, (PodTarget("a", "http://a", "token"),))

    report = await TuningLoop(pod, clock=lambda: 1e9).tick(target)

    assert pod.bodies[0]["batch_step_target_ms"] == pytest.approx(418.0)
    assert pod.bodies[0]["batch_sla"] == {
        "ttft_p99_ms": 60_000.0,
        "tpot_p99_ms": 400.0,
        "itl_p99_ms": None,
        "objective": 0.99,
    }
    assert report.batch is not None
    assert report.batch.verdict == "Meeting"
    assert report.observed.samples == 0
