"""What adapters cost a GPU's step, in launches and bytes."""

from collections import Counter
from pathlib import Path

import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.settings import Quantization
from paceline_testing.fake_gpu_model import FakeGpuModel, a_request, a_step, load_on_fake_gpu
from paceline_testing.tiny_model import SIZES, make_tiny_model

LAYERS: int = SIZES["num_hidden_layers"]
PRODUCTS = 4 * LAYERS
"""qkv, out, gate and up, down."""
KERNELS = {"_adapter_down_kernel", "_adapter_up_kernel"}
SLOT_BYTES = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model for all tests."""
    folder = tmp_path_factory.mktemp("tiny")
    make_tiny_model(folder, "llama", head_dim=16)
    return folder


@pytest.fixture(scope="module", params=["none", "fp8_dynamic"])
def quantization(request: pytest.FixtureRequest) -> Quantization:
    """Adapters take rows also where products take codes."""
    chosen: Quantization = request.param
    return chosen


@pytest.fixture(scope="module")
def without(folder: Path, quantization: Quantization) -> FakeGpuModel:
    """Load it for an engine that takes no adapters."""
    return load_on_fake_gpu(folder, quantization=quantization)


@pytest.fixture(scope="module")
def with_slots(folder: Path, quantization: Quantization) -> FakeGpuModel:
    """Load it for an engine that does."""
    return load_on_fake_gpu(folder, quantization=quantization, max_loras=2)


def steps(model: FakeGpuModel, slot: int | None) -> dict[str, Batch]:
    """Make two steps of three requests, of which the first has no adapter."""
    requests = [a_request(row, slot=slot if row else None) for row in range(3)]
    model.run(a_step(prompts=requests))
    prompts = [a_request(row, slot=slot if row else None) for row in range(3)]
    return {"decodes": a_step(decoding=requests), "prompts": a_step(prompts=prompts)}


def cost(model: FakeGpuModel, batch: Batch) -> tuple[Counter[str], int]:
    """Count the launches of a step, and the bytes of those that are not kernels of ours."""
    launches = model.launches(batch)
    moved = sum(each.read + each.written for each in launches)
    return Counter(each.name for each in launches), moved


@pytest.mark.parametrize("step", ["decodes", "prompts"])
def test_a_step_without_adapters_costs_nothing_more(
    without: FakeGpuModel, with_slots: FakeGpuModel, step: str
) -> None:
    """Not a launch and not a byte, though the engine could have adapters."""
    assert cost(with_slots, steps(with_slots, None)[step]) == cost(
        without, steps(without, None)[step]
    )


def test_adapters_cost_two_launches_a_product(
    without: FakeGpuModel, with_slots: FakeGpuModel, quantization: Quantization
) -> None:
    """And eight bytes a token, in the copy that the step makes anyway.

    In FP8 with FP8 norms and gates write rows, which adapters take: products quantise their own.
    """
    plain, plain_bytes = cost(without, steps(without, None)["decodes"])

    adapted, adapted_bytes = cost(with_slots, steps(with_slots, 1)["decodes"])

    more = adapted - plain
    assert {name: more.pop(name) for name in KERNELS} == dict.fromkeys(KERNELS, PRODUCTS)
    if quantization == "none":
        assert not more | (plain - adapted)
        assert adapted_bytes - plain_bytes == 3 * SLOT_BYTES
    else:
        # The first norm and attention write rows in any case.
        quantised = PRODUCTS - LAYERS - 1
        assert more == {"_quantize_rows_kernel": quantised, "_gate_mul_kernel": LAYERS}
        assert plain - adapted == {"_gate_mul_fp8_kernel": LAYERS}


def test_prompts_find_the_slots_of_those_that_are_read_on_the_device(
    without: FakeGpuModel, with_slots: FakeGpuModel
) -> None:
    """The last layer ends with the tokens that sample: their slots are one launch more."""
    plain, _ = cost(without, steps(without, None)["prompts"])

    adapted, _ = cost(with_slots, steps(with_slots, 1)["prompts"])

    assert (adapted - plain)["aten.index.Tensor"] == 1


def test_decodes_with_adapters_are_one_call_of_the_host(folder: Path) -> None:
    """Their kernels are in the graph, and those of a step without are not."""
    model = load_on_fake_gpu(folder, max_loras=2, graphs="on")

    for slot, wanted in ((1, PRODUCTS), (None, 0)):
        launches = model.launches(steps(model, slot)["decodes"])
        replayed = Counter(each.name for each in launches if each.in_graph)
        others = {each.name for each in launches if not each.in_graph}
        assert [replayed[name] for name in KERNELS] == [wanted, wanted]
        assert not others & KERNELS
