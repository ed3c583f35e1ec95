"""What prefill attention is assumed to reach, beside a model of what its compiled loop issues."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline_testing.issue_slots import Round, round_of
from step_work import assumed
from step_work.assumed import End
from step_work.gpus import GPUS
from step_work.issue import OF_SERIAL, Loop, serial_share

COMPILER = Path(__file__).with_name("aot.py")
ASSUMED = {
    (8, 128): assumed.PREFILL_MMA,
    (9, 128): assumed.PREFILL_WGMMA,
    (10, 128): assumed.PREFILL_TCGEN05,
}
ENDS: tuple[End, ...] = ("likely", "best", "worst")
SASS = """
        /*0000*/                   MOV R1, c[0x0][0x28] ;   /* 0x0 */
        /*0010*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24, gsb0 ;
        /*0020*/              @!P0 MUFU.EX2 R3, R4 ;
        /*0030*/                   MUFU.EX2 R3, R4 ;
        /*0040*/                   FMUL R3, R4, R5 ;
        /*0050*/              @P1  BRA `(.L_x_1) 0x10 ;
        /*0060*/                   FMUL R3, R4, R5 ;
        /*0070*/                   BRA 0x60 ;
"""


def test_a_round_is_the_loop_that_multiplies() -> None:
    """Others, and what is around it, are not counted."""
    assert round_of(SASS) == Round(products=1, others=4, special=2)


def test_products_are_all_where_nothing_else_is_issued() -> None:
    """Of what the clock allows; as many cycles of others halve it."""
    nothing = Loop(9, flops=4096 * 1000, others=0, special=0, num_warps=8)
    as_many = Loop(9, flops=4096 * 1000, others=500, special=0, num_warps=8)
    exponentials = Loop(9, flops=4096 * 1000, others=100, special=62, num_warps=8)

    assert serial_share(nothing, 0.8) == pytest.approx(0.8)
    assert serial_share(as_many, 1.0) == pytest.approx(0.5)
    assert serial_share(exponentials, 1.0) == pytest.approx(1000 / 1992)


@pytest.fixture(scope="module")
def shares() -> dict[tuple[int, int], float]:
    """By generation and size of heads, of what is compiled, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    tests = str(COMPILER.parents[1])
    environment["PYTHONPATH"] = os.pathsep.join((tests, environment.get("PYTHONPATH", "")))
    run = subprocess.run(
        [sys.executable, str(COMPILER), "--rounds"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    rounds: list[dict[str, Any]] = json.loads(run.stdout)
    return {(one["generation"], one["head_size"]): _share(one) for one in rounds}


def _share(one: dict[str, Any]) -> float:
    gpu = next(gpu for gpu in GPUS.values() if gpu.capability[0] == one["generation"])
    issued = one["round"]
    loop = Loop(
        one["generation"], one["flops"], issued["others"], issued["special"], one["num_warps"]
    )
    return serial_share(loop, gpu.matmul_rate / gpu.tensor_rate)


def test_what_is_assumed_is_near_the_compiled_loop(shares: dict[tuple[int, int], float]) -> None:
    """In the range that is assumed; the H100's is what the model is calibrated by."""
    for key, constant in ASSUMED.items():
        likely, best, worst = (shares[key] * OF_SERIAL.at(end) for end in ENDS)
        assert constant.worst <= likely <= constant.best, key
        assert worst <= constant.best, key
        assert constant.worst <= best, key
    assert shares[9, 128] * OF_SERIAL.likely == pytest.approx(0.40, rel=0.1)


def test_narrow_heads_reach_less(shares: dict[tuple[int, int], float]) -> None:
    """Half the FLOPs for each exponential."""
    for generation in (9, 10):
        narrow = shares[generation, 64] / shares[generation, 128]
        assert assumed.NARROW_HEADS.worst <= narrow <= assumed.NARROW_HEADS.best
