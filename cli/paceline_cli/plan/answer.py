"""`paceline plan`: reads manifest, model and trace, and hands them to the pure planner."""

from dataclasses import dataclass, replace
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.tuning_spec import tuning_spec
from paceline_api.units import amount
from paceline_cli.manifest import read
from paceline_cli.plan.assumed_times import REMEMBERED_FACTOR, times_of_ranks, trusted_factor
from paceline_cli.plan.kv_memory import KvMemory
from paceline_cli.plan.model_sizes import AutoOnCpu, PlanError, PlanQuestion, Sizes
from paceline_cli.plan.outlook import ServicePlan
from paceline_cli.plan.planner import Inputs, plan
from paceline_cli.plan.warm_start_fit import recall, remembers
from paceline_cli.traffic.traces import Trace, TraceError, read_trace
from paceline_engine.hardware.devices import CPU, GPUS, Device, device_named

UNACHIEVABLE_EXIT: Final = 3


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The plan, and what it was made from."""

    service: InferenceService
    trace: Trace
    plan: ServicePlan
    assumed_dtype: AutoOnCpu | None = None
    """What `dtype: Auto` on a CPU is taken to be; None where the type is known."""


def answer(question: PlanQuestion) -> PlanAnswer:
    """Read everything and plan. Raises LocalError."""
    service = read(question.manifest)
    try:
        trace = read_trace(question.traffic)
    except TraceError as problem:
        raise PlanError(str(problem)) from problem
    engine, device = service.spec.engine, choose_device(service, question)
    ranks = engine.tensor_parallel_size
    sizes = _sizes(service, device, question)
    whole, part = sizes.of_model(1), sizes.of_model(ranks)
    memory = KvMemory(
        device=device,
        size=part,
        fraction=float(engine.kv_cache_memory_fraction),
        max_token_budget=engine.capacity.max_token_budget,
        draft=sizes.of_draft(),
        ranks=ranks,
        swap_bytes=int(amount(engine.swap_memory or 0)),
        asked_bytes=int(amount(engine.kv_cache_memory or 0)) or None,
    )
    if question.memory:
        model = recall(question.memory, device, whole, ranks=ranks)
        factor = REMEMBERED_FACTOR
    else:
        model = times_of_ranks(device, whole, part, ranks)
        factor = trusted_factor(device, ranks)
    inputs = Inputs(
        spec=tuning_spec(service.spec),
        max_batch_size=engine.capacity.max_batch_size,
        max_model_len=engine.max_model_len,
        memory=memory,
        model=model,
        factor=factor,
        requests=trace.requests,
    )
    return PlanAnswer(service, trace, plan(inputs), sizes.assumed_dtype)


def _sizes(service: InferenceService, device: Device, question: PlanQuestion) -> Sizes:
    """Take `dtype: Auto` on a CPU for float32, which fits any other; a remembered pod knows."""
    sizes = Sizes(service, device, question)
    narrow = replace(sizes, auto_on_cpu="bfloat16")
    ranks = service.spec.engine.tensor_parallel_size
    if sizes.assumed_dtype is None or question.memory is None:
        return sizes
    is_narrow = remembers(question.memory, device, narrow.of_model(1), ranks=ranks)
    return narrow if is_narrow else sizes


def choose_device(service: InferenceService, question: PlanQuestion) -> Device:
    """Take the GPU that was named, or the CPU where the manifest asks for none."""
    known = ", ".join(GPUS)
    if question.gpu is None:
        if service.spec.resources.gpu.count == 0:
            return CPU
        raise PlanError(
            f"{question.manifest}: spec.resources.gpu.count: {service.spec.resources.gpu.count}:"
            f" say which GPU with --gpu: {known}"
        )
    device = device_named(question.gpu, question.gpu_memory_bytes)
    if device.memory_bytes is None:
        raise PlanError(
            f"--gpu {question.gpu}: known are {known}; of any other, say --gpu-memory as well"
        )
    return device
