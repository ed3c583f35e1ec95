"""`paceline plan` names the limits that the tuner would set."""

from dataclasses import replace
from random import Random

from msgspec import structs

from paceline_cli.plan.assumed_times import assumed_times
from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.plan.planner import Inputs, Planner
from paceline_cli.plan.trace_demand import mix
from paceline_cli.traffic.traces import TracedRequest
from paceline_engine.hardware.devices import CPU, GPUS
from paceline_engine.hardware.model_size import ModelSize, Precision
from paceline_testing.telemetry import a_limits, a_telemetry
from paceline_tuner.decide import decide
from paceline_tuner.pod_state import PodState
from paceline_tuner.service_spec import SLA, Range, TuningSpec
from paceline_tuner.telemetry import EngineInfo, LimitValues, Load
from paceline_tuner.tuned_limits import TunedLimits
from paceline_tuner.window import Window


def a_drawn_service(random: Random) -> Inputs:
    """Any device, model, SLA, bounds and lengths that a pod could serve."""
    params = random.choice([1, 3, 8]) * 10**9
    kv_bytes = random.choice([32_768, 131_072])
    size = ModelSize(params, 2 * params, kv_bytes, Precision(2), max_len=8192)
    device = random.choice([CPU, *(GPUS[name] for name in ("h100", "a100", "l40s", "b200"))])
    fit = structs.replace(
        assumed_times(device, size),
        q_r=random.uniform(1.0, 1.4),
        fast=random.uniform(0.8, 1.3),
        correction=tuple(random.uniform(0.8, 1.3) for _ in range(17)),
    )
    step_ms = fit.theta[0]
    sla = SLA(
        ttft_p99_ms=random.choice([None, 50 * step_ms]),
        tpot_p99_ms=random.choice([None, random.uniform(0.7, 6) * step_ms]),
        itl_p99_ms=random.choice([None, random.uniform(0.7, 6) * step_ms]),
    )
    spec = TuningSpec(
        sla=sla,
        batch_size=Range(min=random.choice([1, 8]), max=random.choice([None, 24, 400])),
        token_budget=Range(min=random.choice([64, 700]), max=random.choice([None, 500, 4000])),
        step_margin=random.choice([1.0, 0.8]),
    )
    memory = KvMemory(device, size, 0.9, random.choice([2048, 8192]))
    longest = min(1000, memory.longest(None) // 2)
    requests = tuple(
        TracedRequest(i / 4, random.randint(1, longest), random.randint(1, longest // 4))
        for i in range(40)
    )
    return Inputs(
        spec=spec,
        max_batch_size=random.choice([16, 64, 256]),
        max_model_len=None,
        memory=memory,
        model=fit,
        factor=1.5,
        requests=requests,
    )


def tuned(inputs: Inputs) -> TunedLimits:
    """What the tuner wants of an idle pod that knows this load and has found its floor."""
    capacity = inputs.memory.capacity(inputs.max_batch_size, inputs.max_model_len)
    held = LimitValues(16, 512, None, pace_tpot_ms=None)
    limits = a_limits(requested=held, effective=held, certified=held, capacity=capacity)
    device = "cpu" if inputs.memory.device.is_cpu else f"cuda:{inputs.memory.device.name}"
    telemetry = a_telemetry(
        100.0,
        limits=limits,
        model=inputs.model,
        info=EngineInfo(name="m", device=device),
        load=Load(0, 0, 0),
    )
    window = Window()
    window.add(telemetry)
    evidence = window.evidence(60.0)
    assert evidence is not None
    state = PodState(instance="a", sla=inputs.spec.sla, demand=mix(inputs.requests))
    first = decide(inputs.spec, "pod", evidence, state, now=100.0)
    if first.state.obstacle != "TPOTFloor":
        assert first.wanted is not None
        return first.wanted
    believing = replace(state, unattainable="TPOTFloor")
    wanted = decide(inputs.spec, "pod", evidence, believing, now=100.0).wanted
    assert wanted is not None
    return wanted


def test_plan_and_tuner_agree_on_a_hundred_drawn_services() -> None:
    """Who deploys by a plan finds its limits in the status."""
    random = Random(1)

    for number in range(100):
        inputs = a_drawn_service(random)

        planned = Planner(inputs, inputs.requests).limits()

        wanted = tuned(inputs)
        assert (planned.batch_size, planned.token_budget, planned.step_target_ms) == (
            wanted.batch_size,
            wanted.token_budget,
            wanted.step_target_ms,
        ), f"service {number}: {inputs}"
