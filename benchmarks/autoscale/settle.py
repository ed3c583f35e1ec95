"""Let the tuner come to rest on one pod, as a load test does before anything is scaled."""

from dataclasses import dataclass

from autoscale.fleet import Fleet
from autoscale.horizontal import Seen
from autoscale.pods import Settled
from autoscale.ramp import Ramp
from paceline_wire.limits import Limits

_SECONDS = 1200.0
_FIRST_RPS = 0.9
_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class _Fixed:
    """As many pods as there are."""

    def sync(self, now: float, seen: Seen) -> int:
        del now
        return seen.replicas


async def settle() -> Settled:
    """Find λ* first, then serve four fifths of it and count what is inside."""
    found = await _serve(_FIRST_RPS, Settled(Limits(64, 2048), _FIRST_RPS, 1.0, 1.0))
    return await _serve(_SHARE * found.capacity_rps, found)


async def _serve(rate_rps: float, before: Settled) -> Settled:
    ramp = Ramp(rate_rps, rate_rps, quiet_s=_SECONDS, rise_s=0, stay_s=0, fall_s=0, rest_s=0)
    fleet = Fleet(ramp.requests(seed=7), _Fixed(), before, cold_s=0.0, is_tuned=True)
    await fleet.run(_SECONDS, replicas=1)
    (pod,) = fleet.pods
    engine = pod.pod.engine
    steps = engine.steps[len(engine.steps) // 2 :]
    inside = float(((steps["running"] + steps["waiting"]) * steps["wall_ms"]).sum())
    assert engine.pacer is not None
    return Settled(
        limits=engine.limits,
        capacity_rps=fleet.capacities[-1],
        q_r=engine.pacer.info().q_r,
        in_flight=inside / 1e3 / (_SECONDS / 2),
    )
