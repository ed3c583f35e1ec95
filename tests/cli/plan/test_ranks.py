"""Several ranks: less to read and to compute for each, and sums between them that cost."""

import pytest

from paceline_cli.plan.assumed_form import assumed_form, of_parameters
from paceline_cli.plan.assumed_times import assumed_times, times_of_ranks
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.hardware.devices import CPU, GPUS, Device
from paceline_engine.hardware.model_size import ModelSize, Precision, rank_part, size_of
from paceline_tuner.forecast import Forecast

LLAMA_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128_256,
    "max_position_embeddings": 131_072,
}
H100 = GPUS["h100"]


def part(ranks: int, *, quantization: str = "") -> ModelSize:
    config = rank_part(from_hugging_face(LLAMA_8B), ranks)
    return size_of(config, Precision(2, quantization))


def step_ms(device: Device, ranks: int, *, decode: int, prefill: int = 0) -> float:
    model = times_of_ranks(device, part(1), part(ranks), ranks)
    return Forecast(model).step_ms(decode=decode, prefill=prefill, context=decode * 1000)


def test_one_rank_is_the_model_itself() -> None:
    """Nothing is added up."""
    assert times_of_ranks(H100, part(1), part(1), 1) == assumed_times(H100, part(1))


@pytest.mark.parametrize(("decode", "prefill"), [(1, 0), (64, 0), (8, 4000)])
def test_a_second_rank_is_worth_less_than_a_second_gpu(decode: int, prefill: int) -> None:
    """Over NVLink it pays for itself in every step of an 8B model, and is never free."""
    one, two = (step_ms(H100, ranks, decode=decode, prefill=prefill) for ranks in (1, 2))

    assert one / 2 < two < one


def test_over_a_slow_bus_long_prompts_hardly_gain() -> None:
    """Each token's hidden state crosses it twice a layer."""
    nvlink, bus = H100, GPUS["l40s"]

    def gain(device: Device) -> float:
        alone = step_ms(device, 1, decode=1, prefill=4000)
        return alone / step_ms(device, 2, decode=1, prefill=4000)

    assert nvlink.link.gbps > 10 * bus.link.gbps
    assert gain(nvlink) > 1.4
    assert gain(bus) < gain(nvlink)


def test_processes_of_a_cpu_share_its_cores() -> None:
    """Several of them compute no faster than one; the sums come on top."""
    assert step_ms(CPU, 2, decode=4) > step_ms(CPU, 1, decode=4)


def test_the_sums_are_those_of_a_ring() -> None:
    """By hand: 64 sums a step, each token 4,096 values of two bytes around half a ring twice."""
    shared, alone = times_of_ranks(H100, part(1), part(2), 2), assumed_times(H100, part(2))

    assert shared.theta[0] - alone.theta[0] == pytest.approx(64 * 0.02)
    assert shared.theta[1] - alone.theta[1] == pytest.approx(64 * 4096 * 2 / 450e6)
    assert shared.theta[2:] == alone.theta[2:]


@pytest.mark.parametrize(
    ("params", "num_ends"),
    [(8_030_000_000, 1_050_673_152), (70_600_000_000, 2_101_346_304), (4_022_468_096, 388_956_160)],
    ids=["llama 8b", "llama 70b", "qwen3 4b"],
)
def test_embedding_and_head_are_assumed_rather_many(params: int, num_ends: int) -> None:
    """A plan that promises memory which is not there is worse than one that wastes some."""
    form = assumed_form(params)

    assert num_ends <= form.num_ends < 0.3 * params


@pytest.mark.parametrize("params", [1, 1000, 10**6, 5 * 10**8, 10**12], ids=str)
def test_any_number_of_parameters_has_a_form(params: int) -> None:
    """However small: more embedding than parameters there cannot be."""
    form = assumed_form(params)

    assert 0 <= form.num_ends <= params
    assert form.num_layers >= 1
    assert of_parameters(params, 8, Precision(2, "INT8"), form, ranks=2).weight_bytes > 0


@pytest.mark.parametrize("quantization", ["", "INT8"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_size_that_was_told_is_near_the_one_that_was_read(quantization: str, ranks: int) -> None:
    """With the true number of embedding and head, within a hundredth."""
    precision = Precision(2, quantization)
    read, whole = part(ranks, quantization=quantization), part(1)
    form = assumed_form(whole.num_parameters, num_ends=2 * 128_256 * 4096)

    told = of_parameters(
        whole.num_parameters, whole.kv_bytes_per_token, precision, form, ranks=ranks
    )

    assert told.weight_bytes == pytest.approx(read.weight_bytes, rel=0.01)
    assert told.kv_bytes_per_token == read.kv_bytes_per_token
    assert told.num_layers == pytest.approx(read.num_layers, abs=3)
