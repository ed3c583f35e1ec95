"""`dtype: auto` is what this machine is best at: decided from made times, and measured for real."""

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch

from paceline_engine.loading.dtype import (
    Dtype,
    DtypeSetting,
    Processor,
    ProductTimes,
    Trial,
    bfloat16_instructions,
    dtype_of_cpu,
    dtype_of_gpu,
    judge,
)
from paceline_engine.loading.dtype_trial import choose_dtype, measure, processor
from paceline_engine.loading.load import load_model
from paceline_engine.settings import Quantization, Settings
from paceline_kernels.cpu import op_library
from paceline_testing.tiny_model import make_tiny_model

FITTED = Processor("AVX-512 BF16", has_ops=True)
FLOAT32 = ProductTimes(0.010, 0.020, 0.100)


def _never() -> Trial:
    raise AssertionError("the answer does not depend on a measurement")


def _faster(*times: float) -> Trial:
    """Products in bfloat16 that take a part of the time: for one row, a batch and a prompt."""
    one, batch, prompt = times
    return Trial(FLOAT32, ProductTimes(0.010 / one, 0.020 / batch, 0.100 / prompt))


@pytest.mark.parametrize(
    ("ratios", "dtype"),
    [
        ((2.0, 2.0, 2.0), "bfloat16"),
        ((1.2, 1.1, 1.1), "bfloat16"),
        ((1.0, 1.0, 1.5), "bfloat16"),
        ((1.05, 1.05, 1.05), "float32"),
        ((1.0, 1.0, 1.0), "float32"),
        ((0.5, 0.5, 0.5), "float32"),
        ((3.0, 3.0, 0.8), "float32"),
        ((0.8, 3.0, 3.0), "float32"),
    ],
    ids=["twice", "little", "prompts", "too little", "same", "slower", "bad prompts", "bad alone"],
)
def test_bfloat16_must_measure_faster(ratios: tuple[float, float, float], dtype: Dtype) -> None:
    """By a tenth on the whole, and at a loss for nobody: it costs 16 bits of each number."""
    assert judge(_faster(*ratios), "AMX").dtype == dtype


@pytest.mark.parametrize(
    ("ratios", "dtype"),
    [
        ((1.4, 1.0, 1.0), "bfloat16"),
        ((1.0, 1.0, 1.0), "bfloat16"),
        ((0.9, 1.0, 1.0), "float32"),
        ((3.0, 1.0, 0.8), "float32"),
    ],
    ids=["little", "same", "slower", "bad prompts"],
)
def test_with_weights_of_a_byte_a_tie_is_enough(
    ratios: tuple[float, float, float], dtype: Dtype
) -> None:
    """They have given up more than activations would, and the KV cache holds twice the tokens."""
    assert judge(replace(_faster(*ratios), is_quantized=True), "AMX").dtype == dtype


def test_the_reason_is_a_sentence_with_what_was_measured() -> None:
    better, worse = judge(_faster(1.9, 2.0, 2.1), "AMX"), judge(_faster(0.5, 0.5, 0.5), "AMX")

    assert better.sentence == (
        "bfloat16: measured 2.0 times as fast as float32 (1.9 times for one token, 2.0 for a "
        "batch, 2.1 for a prompt), with AMX"
    )
    assert worse.sentence == (
        "float32: bfloat16 measured 0.5 times as fast as float32 (0.5 times for one token, 0.5 for "
        "a batch, 0.5 for a prompt), with AMX"
    )


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        (Processor(None, has_ops=True), "the processor has no instructions for bfloat16"),
        (Processor("AMX", has_ops=False), "the compiled ops serve float32 alone"),
    ],
    ids=["no instructions", "no ops"],
)
def test_what_cannot_be_faster_is_not_measured(machine: Processor, says: str) -> None:
    """A start on a small machine is slow enough."""
    choice = dtype_of_cpu("auto", machine, _never)

    assert choice.dtype == "float32"
    assert says in choice.reason


@pytest.mark.parametrize("asked", ["float32", "float16", "bfloat16"])
def test_what_is_asked_for_is_served_unmeasured(asked: Dtype) -> None:
    choice = dtype_of_cpu(asked, FITTED, _never)

    assert choice.sentence == f"{asked}: as PACELINE_ENGINE_DTYPE says"
    assert dtype_of_gpu(asked).dtype == asked


@pytest.mark.parametrize(
    ("asked", "instructions", "remark"),
    [
        ("bfloat16", None, "every number is widened before it is multiplied"),
        ("float16", "AMX", "no compiled op serves on a CPU"),
        ("bfloat16", "AMX", ""),
        ("float32", None, ""),
    ],
)
def test_a_type_that_the_machine_serves_slower_is_remarked(
    asked: DtypeSetting, instructions: str | None, remark: str
) -> None:
    """It serves, and the log says why steps take so long."""
    choice = dtype_of_cpu(asked, Processor(instructions, has_ops=True), _never)

    assert choice.dtype == asked
    assert remark in choice.remark
    assert bool(choice.remark) == bool(remark)


def test_a_gpu_computes_in_bfloat16() -> None:
    assert dtype_of_gpu("auto").dtype == "bfloat16"


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ({"avx512f", "avx512_bf16", "amx_bf16", "amx_tile"}, "AMX"),
        ({"avx512f", "avx512_bf16"}, "AVX-512 BF16"),
        ({"asimd", "bf16"}, "Arm's BF16"),
        ({"avx2", "avx512f"}, None),
        (set(), None),
    ],
    ids=["amx", "avx512", "arm", "none", "nothing"],
)
def test_instructions_are_named_by_the_fastest(features: set[str], name: str | None) -> None:
    assert bfloat16_instructions(features) == name


@pytest.mark.parametrize("quantization", ["none", "int8", "fp8_dynamic"])
def test_products_of_both_types_are_timed(quantization: Quantization) -> None:
    """With the layers that would serve, in rounds that end also where the clock stands still."""
    ticks = count()

    trial = measure(quantization, outputs=32, inputs=32, clock=lambda: float(next(ticks)))

    # Each product lies between two readings of a clock that ticks once a reading.
    times = ProductTimes(1.0, 1.0, 1.0)
    assert trial == Trial(times, times, is_quantized=quantization != "none")


def test_a_model_tells_its_type_and_why(tmp_path: Path) -> None:
    """What is chosen for this machine is what weights, cache and info have."""
    make_tiny_model(tmp_path, "llama")
    settings = Settings(
        model_uri=f"file://{tmp_path}", device="cpu", threads=1, kv_cache_bytes=1 << 20
    )

    loaded = load_model(settings, lambda _stage, _fraction: None)

    info = loaded.info
    assert info.dtype in {"float32", "bfloat16"}
    assert info.dtype == str(loaded.runner._decoder.embedding.dtype).removeprefix("torch.")
    assert info.dtype_reason
    assert info.ops == str(op_library())
    assert info.cores.startswith("1 thread, as PACELINE_ENGINE_THREADS says")


@pytest.mark.skipif(processor().instructions is not None, reason="it has them")
def test_this_machine_without_instructions_computes_in_float32() -> None:
    assert choose_dtype(Settings(), torch.device("cpu")).dtype == "float32"
