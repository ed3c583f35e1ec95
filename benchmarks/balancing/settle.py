"""Let the tuner come to rest on one pod, which gets its part of a fleet's requests in turn."""

from typing import Final

import numpy as np

from balancing.pods import PROMISED, Pod, Pods, Settled, an_engine
from balancing.policies import ROUND_ROBIN, a_gateway
from balancing.sessions import Sessions
from paceline_sim.hardware import Hardware
from paceline_sim.sim_pod import SimPod
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_spec import TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from tune_report.arms.arm import PERIOD_S

_BEFORE_S: Final = 300.0
_SECONDS: Final = 600.0
_SHARE: Final = 0.9
"""Of the λ* found before, to look again: near the load that λ* is asked about."""
_SEED: Final = 7


async def settle(hardware: Hardware, replicas: int, first_rps: float) -> Settled:
    """Find λ*, limits and margin of a pod that is one of `replicas`."""
    found = await _served(hardware, replicas, first_rps)
    return await _served(hardware, replicas, _SHARE * found.capacity_rps)


async def _served(hardware: Hardware, replicas: int, rate_rps: float) -> Settled:
    """Serve so much with the tuner, and return the median of the λ* that it told at last."""
    engine = an_engine(hardware, None, _SEED)
    pod, client, now_s = Pod(engine), SimPod(engine), 0.0
    fleet, gateway = Pods([pod] * replicas), a_gateway(ROUND_ROBIN, _SEED)
    loop = TuningLoop(client, lambda: now_s)
    target = ServiceTarget(
        "ns/name",
        TuningSpec(sla=PROMISED, config_hash="one"),
        (PodTarget("pod-0", "http://pod-0", "token"),),
    )
    sessions = Sessions(replicas * rate_rps, _SEED)
    for turn in sessions.turns(-_BEFORE_S, 0.0):
        if gateway.choose(turn, fleet) == 0:
            pod.remember(turn)
    told: list[float] = []
    for turn in sessions.turns(0.0, _SECONDS):
        if gateway.choose(turn, fleet) != 0:
            continue
        while now_s + PERIOD_S <= turn.at_s:
            now_s += PERIOD_S
            client.run_until(now_s)
            report = await loop.tick(target)
            told += [each.capacity_rps for each in report.pods if each.capacity_rps is not None]
        client.run_until(turn.at_s)
        pod.take(turn)
    assert engine.pacer is not None
    capacity_rps = float(np.median(told[len(told) // 2 :]))
    return Settled(capacity_rps, engine.limits, engine.pacer.info().q_r)
