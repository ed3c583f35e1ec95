"""The pod around the simulated engine answers as docs/runtime-api.md says."""

import math
import time
from typing import Any

import msgspec
import numpy as np
import pytest

from paceline_engine.pacing import make_pacer
from paceline_sim.gaps import gaps_over
from paceline_sim.hardware import H100_8B
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_sim.state import OK
from paceline_testing.simulated import a_crowd, an_engine
from paceline_tuner.latency_sketch import LatencySketch
from paceline_tuner.loop import TuningLoop
from paceline_tuner.pods import PodClient, PodRefusedError, PodUnreachableError
from paceline_tuner.service_spec import SLA, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import decode_telemetry
from paceline_wire.limits import Capacity, Limits

POD = PodTarget("pod-0", "http://10.0.0.1:8001", "secret")


def a_pod(**fields: Any) -> SimPod:
    """Twenty requests per second on an H100, for a minute."""
    return SimPod(an_engine(a_crowd(20, 60), hardware=H100_8B, **fields))


async def test_telemetry_is_read_once() -> None:
    """Two answers together hold every step and every ended request once, in order."""
    pod = a_pod()
    pod.run_until(20.0)
    early = await pod.get_telemetry(POD, 0)
    pod.run_until(40.0)
    late = await pod.get_telemetry(POD, early.next)

    assert [s.seq for s in early.steps + late.steps] == list(range(1, len(pod.engine.steps) + 1))
    requests = early.requests + late.requests
    assert [r.seq for r in requests] == list(range(1, len(pod.engine.ended) + 1))
    assert (await pod.get_telemetry(POD, late.next)).steps == ()


_NOT_SIMULATED = {"draft_ms": 0, "weight": 1, "decodes": None}


async def test_telemetry_says_what_the_plant_did() -> None:
    """Field by field, for one step and for every request."""
    pod = a_pod(shed_ttft_ms=2000.0)
    pod.run_until(40.0)

    telemetry = await pod.get_telemetry(POD, 0)

    engine, step = pod.engine, telemetry.steps[100]
    for name in step.__struct_fields__:
        wanted = _NOT_SIMULATED[name] if name in _NOT_SIMULATED else engine.steps[100][name]
        assert getattr(step, name) == wanted, name
    finished = [int(i) for i in engine.ended]
    assert [r.arrived_at for r in telemetry.requests] == engine.jobs["arrival_s"][finished].tolist()
    assert [r.output_tokens for r in telemetry.requests] == engine.jobs["tokens"][finished].tolist()
    assert {r.outcome for r in telemetry.requests} == {"ok"}
    answered = [r.ttft_ms for r in telemetry.requests]
    assert answered == engine.ttft_ms[finished].tolist()
    singles = [r for r in telemetry.requests if r.output_tokens == 1]
    assert singles
    assert all(r.tpot_ms is None and r.itl_max_ms is None for r in singles)
    load = telemetry.load
    assert load is not None
    assert (load.running, load.waiting) == (engine.running, engine.waiting)
    assert load.waiting_tokens == engine.steps["waiting_tokens"][-1]
    assert len(load.running_output_tokens) == engine.running


async def test_an_answer_survives_the_wire() -> None:
    """It could have come from a sidecar."""
    pod = a_pod(pacer=make_pacer(H100_8B.model_info(), Capacity(64, 2048, 4096, 16, 8192)))
    pod.run_until(10.0)

    telemetry = await pod.get_telemetry(POD, 0)

    assert decode_telemetry(msgspec.json.encode(telemetry)) == telemetry
    assert telemetry.model is not None
    assert telemetry.model.valid


async def test_sketches_count_every_gap() -> None:
    """The operator's reading of the slices agrees with the simulated engine's of its own counts."""
    pod = a_pod()
    pod.run_until(33.0)
    await pod.get_telemetry(POD, 0)
    pod.run_until(38.0)

    telemetry = await pod.get_telemetry(POD, 0)

    sketch, counts = LatencySketch(telemetry.sketches), pod.engine.gap_counts
    assert sketch.count == counts.sum()
    assert sketch.over(30.0) == pytest.approx(gaps_over(counts, 30.0).sum(), rel=0.2)
    ok = pod.engine.jobs[pod.engine.outcome == OK]
    spans = ok["last_s"] - ok["first_s"]
    assert sketch.quantile(0.5) == pytest.approx(np.median(spans / ok["tokens"]) * 1e3, rel=0.3)


async def test_reading_is_cheap() -> None:
    """Records are handed over without a conversion each: a steady run of answers stays fast."""
    pod = a_pod()
    pod.run_until(30.0)
    since, spent = 0, []
    for second in range(35, 60, 5):
        pod.run_until(float(second))
        began = time.thread_time()
        since = (await pod.get_telemetry(POD, since)).next
        spent.append(time.thread_time() - began)

    # A few milliseconds where it was written; a hundred would make an evaluation crawl.
    assert min(spent) < 0.1


async def test_a_change_needs_a_greater_epoch() -> None:
    """An old one is refused; an equal one renews the lease and changes nothing."""
    pod = a_pod()
    answer = await pod.patch_limits(POD, {"epoch": 2, "token_budget": 256, "lease_s": 60.0})
    assert (answer.epoch, answer.effective.token_budget) == (2, 256)

    with pytest.raises(PodRefusedError) as refused:
        await pod.patch_limits(POD, {"epoch": 1, "token_budget": 512})
    answer = await pod.patch_limits(POD, {"epoch": 2, "token_budget": 512, "lease_s": 30.0})

    assert refused.value.status == 409
    assert answer.effective.token_budget == 256
    assert answer.lease_expires_s == 30.0
    assert pod.engine.limits.token_budget == 256


async def test_a_bad_value_is_refused_and_a_large_one_clamped() -> None:
    """422 for what cannot be; what is above capacity becomes capacity."""
    pod = a_pod()
    with pytest.raises(PodRefusedError) as refused:
        await pod.patch_limits(POD, {"epoch": 1, "token_budget": 0})
    answer = await pod.patch_limits(POD, {"epoch": 1, "token_budget": 1_000_000})

    assert refused.value.status == 422
    assert answer.effective.token_budget == pod.engine.capacity.max_token_budget
    assert answer.clamped == ("token_budget",)


async def test_a_step_target_is_set_and_taken_away() -> None:
    """Null switches the pacer off; a body that does not name it leaves it."""
    pod = a_pod()
    await pod.patch_limits(POD, {"epoch": 1, "step_target_ms": 40.0})
    await pod.patch_limits(POD, {"epoch": 2, "token_budget": 300})
    assert pod.engine.limits.step_target_ms == 40.0

    await pod.patch_limits(POD, {"epoch": 3, "step_target_ms": None})

    assert pod.engine.limits.step_target_ms is None


async def test_a_lost_lease_returns_to_what_was_certified() -> None:
    """On time, also in the midst of a long run."""
    pod = a_pod()
    await pod.patch_limits(POD, {"epoch": 1, "token_budget": 200, "certified": True})
    await pod.patch_limits(POD, {"epoch": 2, "token_budget": 100, "lease_s": 10.0})

    pod.run_until(30.0)

    steps = pod.engine.steps
    began = steps["at"] - steps["wall_ms"] / 1e3
    assert set(steps["token_budget"][began < 9.9]) == {100}
    assert set(steps["token_budget"][began > 10.1]) == {200}
    telemetry = await pod.get_telemetry(POD, 0)
    assert telemetry.limits is not None
    assert telemetry.limits.lease_lost


async def test_faults_are_switched_on_and_off() -> None:
    """Blind: no telemetry. Down: nothing."""
    pod: SimPod = a_pod()
    pod.is_blind = True
    with pytest.raises(PodUnreachableError):
        await pod.get_telemetry(POD, 0)
    await pod.patch_limits(POD, {"epoch": 1, "token_budget": 256})
    pod.is_down = True
    with pytest.raises(PodUnreachableError):
        await pod.patch_limits(POD, {"epoch": 2, "token_budget": 512})
    pod.is_blind = pod.is_down = False

    assert (await pod.get_telemetry(POD, 0)).ready
    assert len(pod.bodies) == 1


async def test_the_operators_loop_tunes_it() -> None:
    """The real loop, the real pacer: a 20-ms ITL target is set, and gaps come to keep it."""
    capacity = H100_8B.capacity(max_batch_size=256, max_token_budget=8192)
    pod = SimPod(
        SimulatedEngine(
            H100_8B,
            a_crowd(20, 120),
            capacity=capacity,
            limits=Limits(256, 8192),
            pacer=make_pacer(H100_8B.model_info(), capacity),
            seed=1,
        )
    )
    client: PodClient = pod
    loop = TuningLoop(client, lambda: 1e9 + pod.engine.now)
    target = ServiceTarget("a/b", TuningSpec(sla=SLA(itl_p99_ms=20.0)), (POD,))

    reports = []
    for second in range(5, 125, 5):
        pod.run_until(float(second))
        reports.append(await loop.tick(target))

    assert {report.pods[0].error for report in reports} == {""}
    target_ms = pod.engine.limits.step_target_ms
    assert target_ms is not None
    assert target_ms <= 20.0
    counts = pod.engine.gap_counts
    before, after = counts[:1], counts[12:]
    assert gaps_over(before, 20.0).sum() / before.sum() > 0.02
    assert gaps_over(after, 20.0).sum() / after.sum() < 0.01
    assert not math.isnan(pod.engine.ttft_ms[0])
