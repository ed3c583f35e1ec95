"""The published device: its figures are those of the source, and our model of tiles is near."""

from dataclasses import astuple

import numpy as np
import pytest

from paceline_sim.hardware import A100_8B
from paceline_sim.published import A100_8B_PROFILED, LAYER_US
from paceline_sim.steps import step_ms


def ms(*, decode: int = 0, prefill: int = 0, context: int = 0) -> float:
    costs = np.array(astuple(A100_8B_PROFILED.costs), np.float64)
    pairs, rows = prefill * prefill // 2, decode + (prefill > 0)
    return step_ms(A100_8B_PROFILED.dense_ms, costs, decode, prefill, context, pairs, rows)


def test_the_table_is_the_published_one() -> None:
    """Thirty-two layers of what was measured, and what the profile leaves out: the same for all."""
    table = A100_8B_PROFILED.dense_ms
    beside = [table[tokens] - 32 * layer_us / 1e3 for tokens, layer_us in LAYER_US]

    assert len(LAYER_US) <= 100
    assert np.ptp(beside) < 1e-9
    assert 1.0 < beside[0] < 3.0


def test_a_decode_step_takes_longer_than_its_weights_and_less_than_half_more() -> None:
    """The floor is 16.06 GB at 2,039 GB/s."""
    floor_ms = A100_8B_PROFILED.size.weight_bytes / 2039e6

    assert floor_ms < ms(decode=1, context=100) < 1.6 * floor_ms


def test_reading_keys_and_values_takes_twice_the_datasheets_time() -> None:
    deep = ms(decode=64, context=164_000) - ms(decode=64, context=64_000)

    assert deep == pytest.approx(1.947 * 100_000 * 131_072 / 2039e6)


def test_our_model_of_tiles_is_near_the_published_profile() -> None:
    """It has the stairs of 128 and above; below 1,024 tokens real kernels choose finer tiles."""
    tokens = np.arange(128, 8192)
    off = np.abs(A100_8B.dense_ms[tokens] / A100_8B_PROFILED.dense_ms[tokens] - 1)

    assert np.mean(off) < 0.04
    assert np.max(off[tokens >= 1024]) < 0.15
