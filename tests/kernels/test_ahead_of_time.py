import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline_kernels import tuned
from paceline_testing.gpus import GPUS, WARP
from paceline_testing.launches import SHAPES

COMPILER = Path(__file__).with_name("aot.py")
TESTS = COMPILER.parents[1]
HEAD_SIZES = ("smollm2-135m", "llama-3.1-8b", "qwen3-0.6b", "head-96", "head-256", "gemma-3-4b")
FP8 = ("smollm2-fp8", "llama-fp8", "qwen3-fp8", "head-96-fp8", "gemma-fp8", "llama-f16-fp8")
SHAPES_OF = {
    "some": {
        "sm_80": ("llama-3.1-8b",),
        "sm_90": ("smollm2-135m", "head-96", "gemma-fp8"),
        "sm_100": ("llama-fp8",),
    },
    "all": {
        "sm_80": ("llama-3.1-8b", "gemma-3-4b"),
        "sm_90": HEAD_SIZES + FP8,
        "sm_100": ("llama-3.1-8b", "llama-fp8"),
    },
}
DECODED = {"some": ("llama-3.1-8b",), "all": ("qwen2.5-0.5b", "llama-3.2-1b", "llama-3.1-8b")}
EARLY = {"some": ("sm_90",), "all": ("sm_90", "sm_100", "sm_120")}
"""GPUs whose dependent launches are compiled."""
KERNELS = {
    "_rms_norm_kernel",
    "_embed_rms_norm_kernel",
    "_gate_mul_kernel",
    "_gate_mul_fp8_kernel",
    "_quantize_rows_kernel",
    "_quantized_linear_kernel",
    "_row_product_kernel",
    "_int4_linear_kernel",
    "_join_parts_kernel",
    "_adapter_down_kernel",
    "_adapter_up_kernel",
    "_route_kernel",
    "_sort_slots_kernel",
    "_expert_product_kernel",
    "_sum_slots_kernel",
    "_write_rows_kernel",
    "_lay_out_step_kernel",
    "_lay_out_draws_kernel",
    "_keep_tokens_kernel",
    "_rope_and_store_kv_kernel",
    "_plan_kernel",
    "_decode_kernel",
    "_prefill_kernel",
    "_groups_kernel",
    "_cuts_kernel",
    "_draw_kernel",
    "_penalise_kernel",
    "_forbid_kernel",
    "_likelihood_kernel",
}
_PRODUCTS = {
    "_quantized_linear_kernel",
    "_row_product_kernel",
    "_int4_linear_kernel",
    "_expert_product_kernel",
}
SPILLING = {("sm_90", "head-96", "_decode_kernel"): 8}
"""Bytes a thread that are known and not mended: see docs/gpu.md."""
Compiled = list[dict[str, Any]]
WITHIN_S = 2400
"""Some are compiled within ten minutes of a slow core, all within forty."""

pytestmark = pytest.mark.timeout(WITHIN_S + 300)


@pytest.fixture(scope="module", params=["some", pytest.param("all", marks=pytest.mark.compile_all)])
def extent(request: pytest.FixtureRequest) -> str:
    """Some GPUs and shapes, or all: `make gpu-compile`."""
    return str(request.param)


@pytest.fixture(scope="module")
def report(extent: str) -> dict[str, Any]:
    """Compile in a process of its own: here, triton was imported as an interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join((str(TESTS), environment.get("PYTHONPATH", "")))
    command = [sys.executable, str(COMPILER), "--json", extent]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=False
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.fixture
def compiled(report: dict[str, Any]) -> Compiled:
    found: Compiled = report["compiled"]
    return found


def test_every_kernel_compiles_for_every_gpu_and_shape(extent: str, compiled: Compiled) -> None:
    """From the embedded model to heads of 256, with and without the norm of each head."""
    seen = {(one["gpu"], one["shape"], one["kernel"]) for one in compiled}

    assert seen == {
        (gpu, shape, kernel)
        for gpu, shapes in SHAPES_OF[extent].items()
        for shape in shapes
        for kernel in KERNELS
    }


def test_nothing_spills(compiled: Compiled) -> None:
    """A spilled register is a round trip to memory, in the middle of the innermost loop.

    Compiled as for whole devices: decode attention's number of programs follows from them.
    """
    spilling = {
        (one["gpu"], one["shape"], one["kernel"]): one["spilled_bytes"]
        for one in compiled
        if one["spilled_bytes"]
    }

    assert spilling == SPILLING


def test_every_row_of_the_table_of_blocks_compiles_without_a_spill(report: dict[str, Any]) -> None:
    """Also those of GPUs that no shape above is compiled for, at their most demanding classes."""
    wasteful = [one for one in report["rows"] if one["spilled_bytes"] or one["programs"] < 1]

    assert {one["shape"] for one in report["rows"]} == set(map(repr, tuned.SHIPPED.rows))
    assert not wasteful


def test_a_spill_would_be_seen(report: dict[str, Any]) -> None:
    """With 96 registers a thread, attention cannot but spill."""
    starved = {one["kernel"]: one["spilled_bytes"] for one in report["starved"]}

    assert starved["_prefill_kernel"] > 0


def test_every_kernel_fits_a_multiprocessor(compiled: Compiled) -> None:
    """A program that asks for more than there is would fail at its first launch."""
    too_large = [one for one in compiled if one["programs"] < 1]

    assert not too_large


def test_decode_keeps_several_programs_on_a_multiprocessor(compiled: Compiled) -> None:
    """One waits for its KV while another computes: that is what hides the memory's latency."""
    for one in compiled:
        if one["kernel"] == "_decode_kernel":
            assert one["programs"] >= 2, one


def test_prefill_runs_on_each_generations_own_tensor_cores(compiled: Compiled) -> None:
    """Only they reach the rate that the roofline assumes."""
    for one in compiled:
        if one["kernel"] == "_prefill_kernel":
            assert GPUS[one["gpu"]].prefill_instruction in one["instructions"], one


def test_decode_runs_on_tensor_cores(compiled: Compiled) -> None:
    """A group of query heads fills 16 rows, too few for wgmma and right for mma."""
    for one in compiled:
        if one["kernel"] == "_decode_kernel":
            assert "mma" in one["instructions"], one


def test_products_run_on_tensor_cores(compiled: Compiled) -> None:
    """A few rows fill the 16 of mma, as in decode."""
    for one in compiled:
        if one["kernel"] in _PRODUCTS:
            assert {"mma", "wgmma", "tcgen05"} & {*one["instructions"]}, one


def test_adapters_are_multiplied_on_tensor_cores(compiled: Compiled) -> None:
    """Sixteen tokens at a time, as many as mma takes."""
    for one in compiled:
        if one["kernel"] in {"_adapter_down_kernel", "_adapter_up_kernel"}:
            assert "mma" in one["instructions"], one


def test_kv_and_weights_are_copied_16_bytes_at_a_time(compiled: Compiled) -> None:
    """These copies are what bounds them: narrower ones would waste the memory's bandwidth."""
    for one in compiled:
        if one["kernel"] in {"_decode_kernel", "_prefill_kernel", *_PRODUCTS}:
            assert "copy16" in one["instructions"], one


def test_tiles_arrive_while_others_are_multiplied(report: dict[str, Any]) -> None:
    """In every loop that multiplies, on every GPU and in every row: one in use, one on its way.

    An address that is loaded in the round that uses it keeps the compiler from that, and a tile
    that stays a plain load is waited for. Without tensor cores nothing of the kind is asked for.
    """
    rows = {repr(row): row for row in tuned.SHIPPED.rows}
    seen = set()
    for one in (*report["compiled"], *report["rows"]):
        if one["shape"] in rows and rows[one["shape"]].shape.get("bits") == 32:
            continue
        for loop in one["loops"]:
            seen.add(one["kernel"])
            assert loop["buffers"] >= 2, one
            assert min(loop["waits"]) > 0, one
            assert not loop["tile_loads"], one
    assert seen == {
        "_decode_kernel",
        "_prefill_kernel",
        "_quantized_linear_kernel",
        "_row_product_kernel",
        "_int4_linear_kernel",
        "_expert_product_kernel",
        "_adapter_down_kernel",
    }


def test_a_load_behind_a_load_would_be_seen(report: dict[str, Any]) -> None:
    """The same loop over a table that is read in the round that uses it."""
    (waiting,) = report["waiting"]

    assert waiting["loops"]
    assert all(min(loop["waits"], default=0) == 0 for loop in waiting["loops"])


def test_decodes_programs_are_all_on_the_device_at_once(report: dict[str, Any]) -> None:
    """There are as many as the table says; a second wave would wait for the first."""
    rows = {repr(row): row for row in tuned.SHIPPED.rows}
    for one in report["rows"]:
        if one["kernel"] == "_decode_kernel":
            assert one["programs"] >= rows[one["shape"]].blocks["programs"], one


def test_weights_of_decodes_stream(extent: str, report: dict[str, Any]) -> None:
    """Three tiles of the weight or more, 16 bytes at a time, on tensor cores of the generation.

    Two copies or more are on their way for each operand where a round waits for one.
    """
    seen = set()
    for one in report["decoded"]:
        seen.add((one["gpu"], one["shape"]))
        wide = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05"}[one["gpu"]]
        is_few = one["shape"].endswith((" 1 rows", " 16 rows"))
        assert not one["spilled_bytes"], one
        assert one["programs"] >= 1, one
        assert {"mma" if is_few else wide, "copy16"} <= {*one["instructions"]}, one
        (loop,) = one["loops"]
        assert loop["buffers"] >= (4 if is_few else 3), one
        assert min(loop["waits"]) >= 4, one
        assert not loop["tile_loads"], one
    assert seen == {
        (gpu, f"{model}, {count} rows")
        for gpu in SHAPES_OF[extent]
        for model in DECODED[extent]
        for count in (1, 16, 64, 128)
    }


@pytest.mark.parametrize("kernel", ["decode_attention", "row_product"])
def test_who_joins_a_rows_parts_sees_them_all(report: dict[str, Any], kernel: str) -> None:
    """All threads store, then meet, then one counts, for the whole device to see, then all meet."""
    counted = "atom.global.gpu.acq_rel.add"
    steps = report["handing_over"][kernel]
    place = steps.index(counted)

    assert steps[: place + 2] == ["st.global", "bar.sync", counted, "bar.sync"]
    assert "ld.global.cg" in steps[place + 2 :]


def test_a_row_that_is_gated_into_fp8_is_read_once(compiled: Compiled) -> None:
    """Its largest value is found before its codes are made, and it stays in registers between."""
    features = {shape.name: shape.features for shape in SHAPES}
    for one in compiled:
        if one["kernel"] == "_gate_mul_fp8_kernel":
            columns = 1 << (features[one["shape"]] - 1).bit_length()
            of_16_bytes = columns // (8 * WARP * one["num_warps"])
            assert one["loads"] == 2 * of_16_bytes, one


def test_dependent_launches_wait_before_all_else(extent: str, report: dict[str, Any]) -> None:
    """No path reaches memory or an end before the kernels before this one have ended."""
    early = [one for one in report["dependent"] if one["is_launched_early"]]
    seen = {(one["compiled"]["gpu"], one["compiled"]["kernel"]) for one in early}

    assert seen == {(gpu, name) for gpu in EARLY[extent] for name in KERNELS}
    assert not [one for one in early if one["met_before_wait"]]


def test_whoever_does_not_wait_would_be_seen(report: dict[str, Any]) -> None:
    """A load, a store, an atomic, a return before the wait, and a wait on one path of two."""
    met = {one["compiled"]["kernel"]: one["met_before_wait"] for one in report["early"]}

    assert met.pop("_waiting_kernel") == []
    told = {
        "_loading_kernel": ("ld.global", "LDG"),
        "_storing_kernel": ("st.global", "STG"),
        "_counting_kernel": ("atom.global", "MEMBAR"),
        "_leaving_kernel": ("ret", "EXIT"),
        "_doubting_kernel": ("ld.global", "EXIT"),
    }
    assert met.keys() == told.keys()
    for kernel, (in_ptx, in_sass) in told.items():
        assert any(each.startswith("PTX") and in_ptx in each for each in met[kernel]), met
        assert any(each.startswith("SASS") and in_sass in each for each in met[kernel]), met


def test_a_gpu_below_9_0_knows_no_dependent_launches(report: dict[str, Any]) -> None:
    """There each kernel is what it is without the switch."""
    old = [one for one in report["dependent"] if one["compiled"]["gpu"] == "sm_80"]

    assert {one["compiled"]["kernel"] for one in old} == KERNELS
    assert not [one for one in old if one["is_launched_early"]]
    assert [one["compiled"] for one in old] == [
        one
        for one in report["compiled"]
        if (one["gpu"], one["shape"]) == ("sm_80", old[0]["compiled"]["shape"])
    ]


def test_dependent_launches_spill_nothing(report: dict[str, Any]) -> None:
    """Nor does decode lose a program of a multiprocessor to the wait."""
    rows = {
        (one["gpu"], one["shape"], one["kernel"], one["num_warps"], one["shared_bytes"]): one
        for one in report["compiled"]
    }
    for one in (each["compiled"] for each in report["dependent"]):
        place = one["gpu"], one["shape"], one["kernel"], one["num_warps"], one["shared_bytes"]
        assert not one["spilled_bytes"], one
        if one["kernel"] == "_decode_kernel" and place in rows:
            assert one["programs"] == rows[place]["programs"], one


def test_batches_of_all_sizes_share_a_few_variants(report: dict[str, Any]) -> None:
    """What is not compiled at start compiles in the middle of a request."""
    assert report["variants"] == {
        "_rms_norm_kernel": 3,  # with a residual and without, and into FP8
        "_embed_rms_norm_kernel": 1,
        "_gate_mul_kernel": 1,
        "_gate_mul_fp8_kernel": 1,
        "_quantize_rows_kernel": 1,
        "_quantized_linear_kernel": 2,  # up to 16 rows and up to 64; more rows have a third
        "_row_product_kernel": 8,  # four products of a layer, up to 16 rows and up to 64
        "_int4_linear_kernel": 2,  # up to 16 rows and up to 64; more rows have a third
        "_join_parts_kernel": 1,
        "_adapter_down_kernel": 1,
        "_adapter_up_kernel": 1,
        "_route_kernel": 1,
        "_sort_slots_kernel": 3,  # tiles of 16, 64 and 128 rows
        "_expert_product_kernel": 6,  # with a gate and without
        "_sum_slots_kernel": 1,
        "_write_rows_kernel": 1,
        "_lay_out_step_kernel": 1,
        "_lay_out_draws_kernel": 1,
        "_keep_tokens_kernel": 1,
        "_rope_and_store_kv_kernel": 1,
        "_plan_kernel": 1,
        "_decode_kernel": 1,
        "_prefill_kernel": 1,
        "_groups_kernel": 1,
        "_cuts_kernel": 1,
        "_draw_kernel": 1,
        "_penalise_kernel": 1,
        "_forbid_kernel": 1,
        "_likelihood_kernel": 1,
    }
