"""Arrivals that are added up over pods are counted over the same minute in each."""

import math

from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_gpu, clients
from paceline_tuner.demand import ASSUMED, counted_rps, demand
from paceline_tuner.drift import Drift
from paceline_tuner.service_target import PodTarget
from paceline_tuner.window import Evidence, Window


async def evidence_of(*, start_s: float, until: float) -> Evidence:
    """A pod that gets three requests a second from `start_s` on."""
    engine = a_gpu(clients(3.0, start_s=start_s, seconds=until - start_s, seed=1), batch=96, seed=1)
    engine.run_until(until)
    window = Window()
    window.add(await SimPod(engine).get_telemetry(PodTarget("pod", "http://pod", ""), 0))
    evidence = window.evidence(60.0)
    assert evidence is not None
    return evidence


async def test_a_pod_that_gets_its_first_requests_counts_a_minute_without() -> None:
    """Others have counted the rest: five seconds of three a second are a quarter a second."""
    evidence = await evidence_of(start_s=100.0, until=105.0)

    assert 0.1 < counted_rps(evidence, 60.0) < 0.4
    assert demand(evidence, ASSUMED).arrival_rps > 2.0


async def test_a_change_of_the_load_cuts_nothing_off() -> None:
    """What arrived before it did arrive."""
    evidence = await evidence_of(start_s=0.0, until=100.0)
    changed = Drift(fresh_since=evidence.now - 2.0)

    assert math.isclose(counted_rps(evidence, 60.0), 3.0, rel_tol=0.25)
    assert demand(evidence, ASSUMED, changed).arrival_rps != demand(evidence, ASSUMED).arrival_rps
