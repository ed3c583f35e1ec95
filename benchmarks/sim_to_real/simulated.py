"""Plays the real engine's arrivals and lengths on the simulated one."""

import asyncio
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np

from paceline_cli.traffic.offered_load import TokenLengths
from paceline_engine.pacing import Pacer, make_pacer
from paceline_sim.hardware import Disturbance, Hardware
from paceline_sim.requests import Requests
from paceline_sim.sim_pod import SimPod
from paceline_sim.simulated_engine import Circumstances, SimulatedEngine
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import Step
from paceline_wire import MeasuredStep
from paceline_wire.limits import Capacity
from sim_to_real.loads import ReplayLoad, as_requests
from sim_to_real.recording import Recording, WatchedPod
from sim_to_real.run_setup import INTERVAL_S, RunSetup
from sim_to_real.served import BATCH, BUDGET, MODEL_LEN

_POD = PodTarget("simulated", "http://pod", "token")
_LONGEST_S = 600.0
_CROWD_RPS, _CROWD_S = 5.0, 60.0


def capacity_of(hardware: Hardware) -> Capacity:
    """Return the real engine's capacity on this device."""
    return hardware.capacity(max_batch_size=BATCH, max_token_budget=BUDGET, max_model_len=MODEL_LEN)


class Learner:
    """The engine's pacer as it was before each run: it has seen the same steps."""

    def __init__(self, hardware: Hardware) -> None:
        """Know nothing yet."""
        self._pacer = make_pacer(hardware.model_info(MODEL_LEN), capacity_of(hardware))

    def learn(self, steps: Sequence[Step]) -> None:
        """See steps that the real engine ran."""
        for step in steps:
            measured = MeasuredStep(
                step.decode, step.prefill, step.context, step.attention, step.wall_ms
            )
            self._pacer.observe(measured, at=step.at, clean=step.clean)

    def copy(self) -> Pacer:
        """Return a copy of the pacer as it is now."""
        return deepcopy(self._pacer)


def offered(recording: Recording) -> Requests:
    """Return the arrivals at the real pod, in seconds from the beginning of the recording."""
    came = sorted(
        (r for r in recording.requests if r.outcome == "ok" and r.output_tokens > 0),
        key=lambda r: r.arrived_at,
    )
    return Requests(
        np.array([max(r.arrived_at - recording.begun_at, 0.0) for r in came], np.float64),
        np.array([r.prompt_tokens for r in came], np.int64),
        np.array([r.output_tokens for r in came], np.int64),
        np.zeros(len(came), np.int64),
        np.zeros(len(came), np.int8),
    )


def replayed(
    hardware: Hardware,
    requests: Requests,
    setup: RunSetup,
    pacer: Pacer,
    seed: int,
    *,
    level: float = 1.0,
) -> Recording:
    """Serve the same requests on a simulated engine, with each step `level` times as long."""
    engine = SimulatedEngine(
        hardware,
        requests,
        capacity=capacity_of(hardware),
        limits=setup.start,
        pacer=pacer,
        seed=seed,
        circumstances=Circumstances((Disturbance(0.0, math.inf, level),)),
    )
    return asyncio.run(_play(engine, setup))


async def _play(engine: SimulatedEngine, setup: RunSetup) -> Recording:
    pod = SimPod(engine)
    watched = WatchedPod(pod)
    await watched.begin(_POD)
    now_s = 0.0
    loop = TuningLoop(watched, lambda: now_s)
    while not _is_over(engine) and now_s < _LONGEST_S:
        now_s += INTERVAL_S
        pod.run_until(now_s)
        if setup.mode == "tuned":
            await loop.tick(setup.target(_POD))
        else:
            await watched.get_telemetry(_POD, watched.next)
    return watched.recording


def _is_over(engine: SimulatedEngine) -> bool:
    return len(engine.ended) == len(engine.requests)


def capacity_rps(
    hardware: Hardware, setup: RunSetup, prompt: TokenLengths, output: TokenLengths
) -> float:
    """Return the requests a second that the simulator finishes while its queue is never empty."""
    load = ReplayLoad("crowd", 1.0, parts=((prompt, output),))
    planned = load.requests(lambda _prompt, _output: _CROWD_RPS, seconds=_CROWD_S, seed=0)
    crowd = as_requests(planned)
    engine = SimulatedEngine(
        hardware,
        replace(crowd, arrival_s=np.zeros(len(crowd))),
        capacity=capacity_of(hardware),
        limits=setup.start,
        pacer=None,
        seed=0,
    )
    while not _is_over(engine):
        engine.run_until(engine.now + _LONGEST_S)
    return len(crowd) / float(np.max(engine.finished_s))
