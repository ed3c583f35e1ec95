"""Small simulated engines: few requests, a table that is easy to reckon with, no chance."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from paceline_sim.hardware import H100_8B, MAX_STEP_TOKENS, Hardware, Noise, StepCosts
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import Circumstances, SimulatedEngine
from paceline_wire.limits import Capacity, Limits

QUIET = Noise(sigma=0.0, correlation=0.0, spike_chance=0.0)
PLAIN = replace(
    H100_8B,
    name="plain",
    dense_ms=10.0 + 0.01 * np.arange(MAX_STEP_TOKENS + 1, dtype=np.float64),
    costs=StepCosts(0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1, 0.0, 0.0, 1),
    noise=QUIET,
)
"""10 ms a step and 10 us a token, nothing else."""

Row = tuple[float, int, int, int, int]
"""Arrival (s), prompt, output, cached, lane."""


def a_list(rows: Iterable[Sequence[float]]) -> Requests:
    """Requests of (arrival, prompt, output[, cached[, lane]]), sorted by arrival."""
    table = sorted(((*row, 0, 0)[:5] for row in rows), key=lambda row: row[0])
    arrival, prompt, output, cached, lane = zip(*table, strict=True) if table else ((),) * 5
    return Requests(
        np.array(arrival, np.float64),
        np.array(prompt, np.int64),
        np.array(output, np.int64),
        np.array(cached, np.int64),
        np.array(lane, np.int8),
    )


def a_crowd(rate: float, seconds: float, *, seed: int = 0) -> Requests:
    """Chance arrivals with prompts of about 400 tokens and outputs of about 60."""
    chance = np.random.default_rng(seed)
    count = int(rate * seconds)
    return Requests(
        np.sort(chance.uniform(0, seconds, count)),
        chance.integers(50, 800, count),
        chance.integers(1, 120, count),
        np.zeros(count, np.int64),
        np.zeros(count, np.int8),
    )


def an_engine(
    rows: Iterable[Sequence[float]] | Requests,
    *,
    hardware: Hardware = PLAIN,
    batch: int = 64,
    budget: int = 512,
    blocks: int = 4096,
    **fields: Any,
) -> SimulatedEngine:
    """64 rows, 512 tokens a step, KV for 65,536 tokens; other fields are its circumstances."""
    requests = rows if isinstance(rows, Requests) else a_list(rows)
    given: dict[str, Any] = {
        "capacity": Capacity(max(batch, 64), max(budget, 2048), blocks, 16, 8192),
        "limits": Limits(batch, budget),
        "pacer": None,
        "seed": 1,
    }
    given |= {name: fields.pop(name) for name in given.keys() & fields.keys()}
    return SimulatedEngine(hardware, requests, **given, circumstances=Circumstances(**fields))
