"""What a request may ask for is compiled before the engine is ready, and nothing after."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SERVES = Path(__file__).with_name("served_variants.py")
TESTS = SERVES.parents[1]
FUSED = {"row products", "row products, gemma 3", "row products, lora"}
MODELS = {"bfloat16", "small", "fp8", "int8", "fp8_dynamic", "gemma", "gemma 3", "lora", "draft"}
MODELS |= FUSED

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """Serve in a process of its own: here, triton was imported as an interpreter."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join((str(TESTS), environment.get("PYTHONPATH", "")))
    run = subprocess.run(
        [sys.executable, str(SERVES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_traffic_compiles_nothing(report: dict[str, Any]) -> None:
    """Every option, adapters, drafts, grammars, long contexts and many sequences included."""
    compiled = {name: one["traffic"] for name, one in report["found"].items()}

    assert compiled == {name: {} for name in MODELS}


def test_the_start_compiles_products_of_few_rows(report: dict[str, Any]) -> None:
    """Where they are on, the start's graphs launch them; elsewhere none is."""
    started = {
        name for name, one in report["found"].items() if "_row_product_kernel" in one["start"]
    }

    assert started == FUSED


def test_a_variant_that_was_left_out_would_be_seen(report: dict[str, Any]) -> None:
    """A plain prompt and a decode are not enough for the same traffic."""
    compiled = report["without"]["traffic"]

    assert compiled.keys() >= {
        "_prefill_kernel",  # of more than 256 sequences
        "_quantized_linear_kernel",  # of more than 64 rows
        "_groups_kernel",  # of scores in float32, as the next two
        "_cuts_kernel",
        "_draw_kernel",
        "_penalise_kernel",
        "_forbid_kernel",
        "_likelihood_kernel",
    }


def test_a_start_compiles_some_dozens_of_variants(report: dict[str, Any]) -> None:
    """Each takes a third of a second and more of the first start on a machine."""
    for name, one in report["found"].items():
        assert 15 < sum(one["start"].values()) < 80, name
