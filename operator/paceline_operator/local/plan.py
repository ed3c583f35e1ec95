"""`paceline plan`: reads manifest, model and trace, and hands them to the pure planner."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline_operator.api.inference_service import InferenceService
from paceline_operator.api.tuning_spec import hot
from paceline_operator.local.errors import LocalError
from paceline_operator.local.manifest import read
from paceline_operator.local.model_files import model_size
from paceline_operator.local.recalled import recall
from paceline_operator.local.settings import cache_dir
from paceline_operator.planning.device import CPU, GPUS, REMEMBERED_FACTOR, Device, find_gpu, prior
from paceline_operator.planning.kv_memory import KvMemory
from paceline_operator.planning.model_size import ModelSize, Precision
from paceline_operator.planning.outlook import ServicePlan
from paceline_operator.planning.service_plan import Inputs, plan
from paceline_operator.traffic.traces import Trace, TraceError, read_trace

UNACHIEVABLE_EXIT: Final = 3


class PlanError(LocalError):
    """The plan cannot be made; the message names what is missing."""


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked on the command line."""

    manifest: Path
    traffic: Path
    gpu: str | None = None
    gpu_memory_bytes: int | None = None
    params: int | None = None
    kv_bytes: int | None = None
    memory: Path | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The plan, and what it was made from."""

    service: InferenceService
    trace: Trace
    plan: ServicePlan


def answer(question: Question) -> Answer:
    """Read everything and plan. Raises LocalError."""
    service = read(question.manifest)
    try:
        trace = read_trace(question.traffic)
    except TraceError as problem:
        raise PlanError(str(problem)) from problem
    if (ranks := service.spec.engine.tensor_parallel_size) > 1:
        raise PlanError(
            f"{question.manifest}: spec.engine.tensorParallelSize: {ranks}: the planner knows the"
            " steps of one device only, not what several lose by adding up their parts"
        )
    device = choose_device(service, question)
    size = _size(service, question, device)
    engine = service.spec.engine
    memory = KvMemory(
        device=device,
        size=size,
        fraction=float(engine.kv_cache_memory_fraction),
        max_token_budget=engine.capacity.max_token_budget,
    )
    inputs = Inputs(
        spec=hot(service.spec),
        max_batch_size=engine.capacity.max_batch_size,
        max_model_len=engine.max_model_len,
        memory=memory,
        model=recall(question.memory, device, size) if question.memory else prior(device, size),
        factor=REMEMBERED_FACTOR if question.memory else device.factor,
        requests=trace.requests,
    )
    return Answer(service, trace, plan(inputs))


def choose_device(service: InferenceService, question: Question) -> Device:
    """Take the GPU that was named, or the CPU where the manifest asks for none."""
    known = ", ".join(GPUS)
    if question.gpu is None:
        if service.spec.resources.gpu.count == 0:
            return CPU
        raise PlanError(
            f"{question.manifest}: spec.resources.gpu.count: {service.spec.resources.gpu.count}:"
            f" say which GPU with --gpu: {known}"
        )
    device = find_gpu(question.gpu, question.gpu_memory_bytes)
    if device is None:
        raise PlanError(
            f"--gpu {question.gpu}: known are {known}; of any other, say --gpu-memory as well"
        )
    return device


def _size(service: InferenceService, question: Question, device: Device) -> ModelSize:
    engine = service.spec.engine
    precision = Precision(
        _bytes_per_value(service, device),
        quantization="" if engine.quantization == "None" else engine.quantization,
        has_fp8_kv=engine.kv_cache_dtype == "FP8",
    )
    if question.params is not None and question.kv_bytes is not None:
        # Which of them are products is not said, so all count as such.
        bytes_per_value = 1 if precision.quantization else precision.bytes_per_value
        return ModelSize(
            num_parameters=question.params,
            weight_bytes=question.params * bytes_per_value,
            kv_bytes_per_token=question.kv_bytes,
            precision=precision,
            kv_arithmetic="--kv-bytes",
            weight_arithmetic=f"{question.params:,} parameters x {bytes_per_value} B",
        )
    if question.params is not None or question.kv_bytes is not None:
        raise PlanError("--params and --kv-bytes go together: one says nothing without the other")
    model = service.spec.model
    return model_size(model.uri, revision=model.revision, precision=precision, cache=cache_dir())


def _bytes_per_value(service: InferenceService, device: Device) -> int:
    dtype = service.spec.engine.dtype
    if dtype == "Auto":
        return 4 if device.is_cpu else 2
    return 4 if dtype == "Float32" else 2
