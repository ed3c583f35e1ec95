"""A warm start takes nothing from a candidate: the next pods would start from it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from paceline_sim.sim_pod import SimPod
from paceline_testing.simulated import a_laptop, clients
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_spec import SLA, ExperimentPlan, Overrides, Range, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import LimitsAnswer, Telemetry
from paceline_tuner.warm_start import WarmStart
from paceline_wire.limits import Limits

pytestmark = pytest.mark.slow

SPEC = TuningSpec(
    sla=SLA(tpot_p99_ms=250.0), config_hash="one", batch_size=Range(min=1), token_budget=Range(64)
)
SMALL = ExperimentPlan("one", "Canary", Overrides(max_batch_size=5), max_s=3600.0)


@dataclass
class Shelf:
    """A store that keeps every warm_start."""

    saved: list[WarmStart] = field(default_factory=list)

    async def load(self) -> WarmStart:
        return WarmStart()

    async def save(self, warm_start: WarmStart) -> None:
        self.saved.append(warm_start)


async def batch_sizes(spec: TuningSpec) -> set[int]:
    """All batch sizes that the warm start took in six minutes of two pods."""
    at = 1e9
    shelf = Shelf()
    pods = {
        f"pod-{seed}": SimPod(
            a_laptop(
                clients(2.0, prompt=(10, 40), output=(8, 24), seed=seed),
                limits=Limits(16, 512),
                seed=seed,
            ),
            engine_version="1",
        )
        for seed in (1, 2)
    }

    class Client:
        async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
            return await pods[pod.name].get_telemetry(pod, since)

        async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
            return await pods[pod.name].patch_limits(pod, body)

    loop = TuningLoop(Client(), lambda: at, shelf)
    targets = tuple(PodTarget(name, f"http://{name}", "token") for name in pods)
    for _ in range(72):
        at += 5.0
        for pod in pods.values():
            pod.run_until(pod.engine.now + 5.0)
        await loop.tick(ServiceTarget("ns/name", spec, targets))
    return {entry.batch_size for warm_start in shelf.saved for entry in warm_start.entries}


async def test_only_the_base_teaches() -> None:
    """The canary's five are nowhere in the warm start; on all pods they would be."""
    under_trial = await batch_sizes(replace(SPEC, experiment=SMALL))
    declared = await batch_sizes(replace(SPEC, batch_size=Range(min=1, max=5)))

    assert under_trial
    assert 5 not in under_trial
    assert declared == {5}
