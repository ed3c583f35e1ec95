"""What steps of quantised and adapted models launch and move, and experts: on a GPU not there."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from paceline_kernels.int4.kernel import int4_linear
from paceline_kernels.moe.kernel import fused_experts, route_experts
from paceline_testing.device_record import Launch
from paceline_testing.fake_cuda import FakeCuda
from step_work.kernels import moved
from step_work.steps import DECODE, FakeModel, Step, fake_model
from step_work.work import StepWork, work_of

MODEL = "qwen2.5-0.5b"
HIDDEN, QKV, ATTENDED, MLP, LAYERS, ROWS = 896, 1152, 896, 4864, 3, 64
"""Three of its 24 layers are enough: all but the first and the last are alike."""
SHAPES = ((HIDDEN, QKV), (ATTENDED, HIDDEN), (HIDDEN, 2 * MLP), (MLP, HIDDEN))
"""Inputs and outputs of a layer's products."""
WEIGHTS = LAYERS * sum(inputs * outputs for inputs, outputs in SHAPES)


def model_with(**asked: Any) -> FakeModel:
    return fake_model(MODEL, num_layers=LAYERS, **asked)


@cache
def plain() -> FakeModel:
    """In bfloat16."""
    return model_with()


def labelled(work: StepWork, *labels: str) -> tuple[int, int]:
    """Bytes and FLOPs of the launches of these kinds."""
    found = [one for one in work.launches if one.label in labels]
    assert found
    return sum(one.num_bytes for one in found), sum(one.flops for one in found)


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_weights_of_a_byte_are_half_the_bytes(quantization: str) -> None:
    """With a scale for each output; rows are read and written as they are."""
    work = work_of(model_with(quantization=quantization), DECODE)
    num_bytes, flops = labelled(work, "quantized_linear")

    scales = 4 * LAYERS * sum(outputs for _, outputs in SHAPES)
    rows = 2 * ROWS * LAYERS * sum(map(sum, SHAPES))
    biases = 2 * LAYERS * QKV
    assert num_bytes == WEIGHTS + scales + rows + biases
    assert flops == 2 * ROWS * WEIGHTS
    assert work.flops == work_of(plain(), DECODE).flops


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_a_whole_model_of_bytes_moves_little_more_than_it_must(quantization: str) -> None:
    """With all of its layers; what 2 bytes a weight move beyond theirs is 10 %."""
    work = work_of(fake_model(MODEL, quantization=quantization), DECODE)

    assert 0 < work.surplus < 0.14


def test_rows_in_fp8_are_counted() -> None:
    """A layer has two launches more: its attention's rows, and a bias."""
    work = work_of(model_with(quantization="fp8_dynamic"), DECODE)

    assert labelled(work, "gate_mul_fp8")[0] == LAYERS * ROWS * (2 * 2 * MLP + MLP + 4)
    rows = ROWS * (2 * ATTENDED + ATTENDED + 4)
    assert labelled(work, "quantize_rows")[0] >= LAYERS * rows
    assert work.flops == work_of(plain(), DECODE).flops
    assert work.num_bytes < work_of(plain(), DECODE).num_bytes - 0.9 * WEIGHTS


@pytest.mark.parametrize("num_adapters", [1, 3])
def test_adapters_are_read_as_often_as_there_are(num_adapters: int) -> None:
    """Beside what the model does without them; slots that nobody uses are not read."""
    rank = 16
    model = model_with(max_loras=4, max_lora_rank=rank)
    without = work_of(model, DECODE)
    work = work_of(model, replace(DECODE, num_adapters=num_adapters))

    assert of_kind(without, "adapter") == ()
    assert without.num_bytes == work_of(plain(), DECODE).num_bytes
    adapters = of_kind(work, "adapter")
    parts = (3, 1, 2, 1)  # q, k and v; gate and up
    factors = sum(
        rank * (count * inputs + outputs)
        for count, (inputs, outputs) in zip(parts, SHAPES, strict=True)
    )
    assert len(adapters) == 8 * LAYERS
    assert sum(one.flops for one in adapters) == 2 * ROWS * factors * LAYERS
    one_more = work_of(model, replace(DECODE, num_adapters=num_adapters + 1))
    assert one_more.num_bytes - work.num_bytes == 2 * factors * LAYERS


def of_kind(work: StepWork, start: str) -> tuple[Any, ...]:
    return tuple(one for one in work.launches if one.label.startswith(start))


def launched(run: Any) -> dict[str, Any]:
    """What each launch moves, by kernel; of equal ones the last."""
    fake = FakeCuda()
    with fake.visible(), torch.inference_mode():
        fake.record.clear()
        run()
    kernels: list[Launch] = [one for one in fake.record.launches if one.kind == "kernel"]
    return {one.name: moved(one, Step("")) for one in kernels}


def test_experts_that_no_slot_has_are_not_read() -> None:
    """Eight tokens with two experts each read sixteen of sixty-four, once."""
    tokens, top_k, experts, hidden, width = 8, 2, 64, 256, 128

    def run() -> None:
        def empty(*sizes: int) -> torch.Tensor:
            return torch.empty(sizes, dtype=torch.bfloat16, device="cuda")

        weights, ids = route_experts(empty(tokens, experts), top_k, is_renormalised=True)
        gate_up, down = empty(experts, 2 * width, hidden), empty(experts, hidden, width)
        fused_experts(empty(tokens, hidden), gate_up, down, weights, ids)

    seen = launched(run)

    slots = tokens * top_k
    routed = 2 * tokens * experts, 8 * slots
    assert (seen["_route_kernel"].read, seen["_route_kernel"].written) == routed
    assert seen["_sort_slots_kernel"].read == 4 * slots
    last = seen["_expert_product_kernel"]  # down
    assert last.flops == 2 * slots * hidden * width
    weights_and_rows = 2 * slots * hidden * width + 2 * slots * width
    assert weights_and_rows < last.read < weights_and_rows + 4 * 64 * experts * 16
    assert last.written == 2 * slots * hidden
    assert seen["_sum_slots_kernel"].read == 2 * slots * hidden + 8 * slots
    assert seen["_sum_slots_kernel"].written == 2 * tokens * hidden


def test_weights_of_4_bits_are_a_quarter() -> None:
    """Scale and zero point are a word for each group; parts are written, and read by who joins."""
    rows, inputs, outputs = 4, 4096, 256

    def run() -> None:
        x = torch.empty(rows, inputs, dtype=torch.bfloat16, device="cuda")
        weight = torch.empty(inputs // 128, outputs, 16, dtype=torch.int32, device="cuda")
        groups = torch.empty(inputs // 128, outputs, dtype=torch.int32, device="cuda")
        int4_linear(x, weight, groups)

    seen = launched(run)

    product = seen["_int4_linear_kernel"]
    groups = 4 * outputs * inputs // 128
    assert product.read == inputs * outputs // 2 + groups + 2 * rows * inputs
    assert product.flops == 2 * rows * inputs * outputs
    assert seen["_join_parts_kernel"].read == product.written
    assert seen["_join_parts_kernel"].written == 2 * rows * outputs
