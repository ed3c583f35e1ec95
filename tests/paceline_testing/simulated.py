"""Simulated engines: small ones that are easy to reckon with, and a laptop's and a GPU's."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from paceline_engine.pacing import make_pacer
from paceline_sim.hardware import CPU_135M, H100_8B, MAX_STEP_TOKENS, Hardware, Noise, StepCosts
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
    **changes: Any,
) -> SimulatedEngine:
    """64 rows, 512 tokens a step, KV for 65,536 tokens; other changes are its circumstances."""
    requests = rows if isinstance(rows, Requests) else a_list(rows)
    given: dict[str, Any] = {
        "capacity": Capacity(max(batch, 64), max(budget, 2048), blocks, 16, 8192),
        "limits": Limits(batch, budget),
        "pacer": None,
        "seed": 1,
    }
    given |= {name: changes.pop(name) for name in given.keys() & changes.keys()}
    return SimulatedEngine(hardware, requests, **given, circumstances=Circumstances(**changes))


def clients(
    rate: float,
    *,
    prompt: tuple[int, int] = (200, 500),
    output: tuple[int, int] = (16, 48),
    start_s: float = 0.0,
    seconds: float = 900.0,
    seed: int = 1,
) -> Requests:
    """Requests that come by chance, `rate` a second, from `start_s` on."""
    chance = np.random.default_rng(seed)
    gaps_s = chance.exponential(1 / rate, int(rate * seconds)) if rate else np.zeros(0)
    count = len(gaps_s)
    return Requests(
        start_s + np.cumsum(gaps_s),
        chance.integers(*prompt, count, endpoint=True),
        chance.integers(*output, count, endpoint=True),
        np.zeros(count, np.int64),
        np.zeros(count, np.int8),
    )


def then(first: Requests, second: Requests) -> Requests:
    """The first clients until the second come."""
    count = int(np.searchsorted(first.arrival_s, second.arrival_s[0]))
    return Requests(
        *(
            np.concatenate([getattr(first, field.name)[:count], getattr(second, field.name)])
            for field in fields(Requests)
            if field.name not in {"turn_s", "patience_s"}  # they come first, first served
        )
    )


LAPTOP_LIMITS = Limits(64, 2048)
_LAPTOP_CAPACITY = Capacity(64, 2048, 4096, 16, 4096)
_GPU_CAPACITY = Capacity(256, 8192, 30_000, 16, 8192)


def a_laptop(
    requests: Requests, *, limits: Limits = LAPTOP_LIMITS, seed: int = 1, **circumstances: Any
) -> SimulatedEngine:
    """A small model on a CPU, with the engine's own pacer: 28 ms a step, 1.7 ms a prompt token."""
    return SimulatedEngine(
        CPU_135M,
        requests,
        capacity=_LAPTOP_CAPACITY,
        limits=limits,
        pacer=make_pacer(CPU_135M.model_info(), _LAPTOP_CAPACITY),
        seed=seed,
        circumstances=Circumstances(**circumstances),
    )


def a_gpu(requests: Requests, *, batch: int = 256, seed: int = 1) -> SimulatedEngine:
    """A model of 8B on an H100, with the engine's own pacer."""
    return SimulatedEngine(
        H100_8B,
        requests,
        capacity=_GPU_CAPACITY,
        limits=Limits(batch, 8192),
        pacer=make_pacer(H100_8B.model_info(), _GPU_CAPACITY),
        seed=seed,
    )
