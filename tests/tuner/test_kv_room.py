"""How many sequences KV memory holds: prompts are weighed at admission, outputs are guessed."""

from dataclasses import replace

import pytest

from paceline_tuner.capacity import CapacityModel
from paceline_tuner.demand import ASSUMED, Demand
from paceline_tuner.forecast import Forecast
from paceline_tuner.telemetry import CapacityValues, ModelFit

MODEL = ModelFit(
    theta=(8.0, 0.01, 0.04, 0.06, 0.9), prior=(8.0, 0.01, 0.04, 0.06, 0.9), knee=256,
    correction=(), fast=1.0, q_r=1.05, samples=1000, mape=0.03, valid=True,
)  # fmt: skip
TOKENS = 400_000


def a_load(prompt: float, output: float, *, cached: float = 0.0) -> Demand:
    """Sequences whose prompts and outputs vary by half of their means."""
    deviation = 0.5 * (prompt**2 + output**2) ** 0.5
    return replace(
        ASSUMED,
        prompt=prompt - cached,
        output=output,
        held=prompt + output,
        held_deviation=deviation,
        whole_prompt_deviation=0.5 * prompt,
    )


def most_by_memory(demand: Demand) -> int:
    capacity = CapacityValues(
        1024, 8192, num_blocks=TOKENS // 16, block_size=16, max_model_len=32_768
    )
    return CapacityModel(Forecast(MODEL), demand, capacity, None, 64).largest_batch(1024)[0]


def test_light_prompts_may_fill_the_memory_of_long_ones() -> None:
    """Heavy ones wait for their blocks, so a batch of more than the mean cannot run out."""
    mean = TOKENS / (9000 + 180)

    assert mean < most_by_memory(a_load(9000, 180)) < 1.4 * mean


def test_long_outputs_leave_room_to_grow() -> None:
    """Their blocks are not there at admission: who has none later is preempted."""
    mean = TOKENS / (300 + 1500)

    assert most_by_memory(a_load(300, 1500)) < 0.95 * mean


@pytest.mark.parametrize("output", [100, 1000, 4000])
def test_what_is_cached_holds_blocks_too(output: int) -> None:
    """A prefix that need not be computed is memory all the same."""
    assert most_by_memory(a_load(8000, output)) == most_by_memory(a_load(8000, output, cached=6000))


def test_what_is_cached_makes_a_prompts_tokens_dearer() -> None:
    """They attend to all of it: a pod serves fewer than their number alone would say."""
    capacity = CapacityValues(
        1024, 8192, num_blocks=TOKENS // 16, block_size=16, max_model_len=32_768
    )
    rates = [
        CapacityModel(Forecast(MODEL), demand, capacity, 60.0, 64).sustainable_rps(32)
        for demand in (
            replace(a_load(9000, 200, cached=8000), context=9000.0),
            replace(a_load(1000, 200), context=9000.0),
        )
    ]

    assert rates[0] < rates[1]
