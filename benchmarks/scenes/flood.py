"""A thousand batch requests at once beside people, with lanes and without.

One simulated H100 serves an 8B model with fixed limits and the engine's own pacer. The requests
are the same in both runs; without lanes those of the flood say nothing, and are interactive.
"""

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from paceline_engine.pacing import make_pacer
from paceline_sim.hardware import H100_8B
from paceline_sim.requests import Requests
from paceline_sim.simulated_engine import SimulatedEngine
from paceline_wire.limits import Limits
from tune_report.arrivals import Floats, arrivals, constant
from tune_report.mixes import CONVERSATION

FLOOD: Final = 1000
FLOOD_S: Final = 60.0
_RPS: Final = 8.0
_DURATION_S: Final = 240.0
_LIMITS: Final = Limits(64, 8192, 50.0)
_WINDOW_S, _PERIOD_S = 10.0, 2.5
_SEEDS: Final = (1, 2, 3, 4, 5)
_BATCH: Final = 1
Bools = npt.NDArray[np.bool_]


class FloodTrack(msgspec.Struct, frozen=True):
    """One way of serving, over five seeds together, every 2.5 seconds."""

    name: str
    ttft_p99_ms: list[float]
    """Of the interactive requests that arrived in the last ten seconds."""
    flood_tokens_per_s: list[float]
    """Output tokens of the flood, each answer's spread evenly from its first token to its last."""
    calm_p99_ms: float
    """TTFT of those that arrived before the flood."""
    flooded_p99_ms: float
    """Of those that arrived in the minute from the flood on."""
    served_after_s: float
    """From the flood to the end of its last answer, the median over seeds."""


class FloodScene(msgspec.Struct, frozen=True):
    """With lanes and without."""

    at_s: list[float]
    flood: int
    flood_s: float
    interactive_rps: float
    tracks: list[FloodTrack]


def flood_scene() -> FloodScene:
    """Serve both ways. Deterministic."""
    at_s = np.arange(_WINDOW_S, _DURATION_S + _PERIOD_S, _PERIOD_S)
    tracks = [
        _track(name, at_s, has_lanes=has_lanes)
        for name, has_lanes in (("without lanes", False), ("in the batch lane", True))
    ]
    return FloodScene(at_s.tolist(), FLOOD, FLOOD_S, _RPS, tracks)


def _track(name: str, at_s: Floats, *, has_lanes: bool) -> FloodTrack:
    arrived, ttft, rates, served_after = [], [], [], []
    for seed in _SEEDS:
        requests, is_flood = _requests(seed, has_lanes=has_lanes)
        engine = _served(requests, seed)
        arrived.append(requests.arrival_s[~is_flood])
        ttft.append(engine.ttft_ms[~is_flood])
        jobs = engine.jobs[is_flood]
        rates.append(
            _rate(
                jobs["first_s"], jobs["last_s"], requests.output[is_flood].astype(np.float64), at_s
            )
        )
        served_after.append(float(np.max(jobs["last_s"])) - FLOOD_S)
    arrived_s, ttft_ms = np.concatenate(arrived), np.concatenate(ttft)
    return FloodTrack(
        name=name,
        ttft_p99_ms=[_p99(ttft_ms, arrived_s, t - _WINDOW_S, t) for t in at_s],
        flood_tokens_per_s=[round(float(rate), 1) for rate in np.mean(rates, axis=0)],
        calm_p99_ms=_p99(ttft_ms, arrived_s, 0.0, FLOOD_S),
        flooded_p99_ms=_p99(ttft_ms, arrived_s, FLOOD_S, FLOOD_S + 60.0),
        served_after_s=round(float(np.median(served_after)), 1),
    )


def _requests(seed: int, *, has_lanes: bool) -> tuple[Requests, Bools]:
    random = np.random.default_rng([seed, 10])
    at_s = arrivals(random, constant(_RPS), _DURATION_S)
    prompt, output, cached = CONVERSATION.draw(random, len(at_s))
    flood_prompt = random.integers(200, 2000, FLOOD)
    flood_output = random.integers(100, 400, FLOOD)
    all_s = np.concatenate([at_s, np.full(FLOOD, FLOOD_S)])
    order = np.argsort(all_s, kind="stable")
    is_flood = np.concatenate([np.zeros(len(at_s), np.bool_), np.ones(FLOOD, np.bool_)])[order]
    lane = np.where(is_flood & has_lanes, _BATCH, 0).astype(np.int8)
    return Requests(
        all_s[order],
        np.concatenate([prompt, flood_prompt])[order],
        np.concatenate([output, flood_output])[order],
        np.concatenate([cached, np.zeros(FLOOD, np.int64)])[order],
        lane,
    ), is_flood


def _served(requests: Requests, seed: int) -> SimulatedEngine:
    capacity = H100_8B.capacity(max_batch_size=64, max_token_budget=8192)
    engine = SimulatedEngine(
        H100_8B,
        requests,
        capacity=capacity,
        limits=_LIMITS,
        pacer=make_pacer(H100_8B.model_info(), capacity),
        seed=seed,
    )
    engine.run_until(4 * _DURATION_S)
    return engine


def _rate(first_s: Floats, last_s: Floats, output: Floats, at_s: Floats) -> Floats:
    """Return tokens a second over the last window before each time."""
    spans_s = np.maximum(last_s - first_s, 1e-6)
    begin_s = at_s[:, None] - _WINDOW_S
    shared_s = np.minimum(last_s, at_s[:, None]) - np.maximum(first_s, begin_s)
    tokens = np.sum(output * np.clip(shared_s, 0.0, None) / spans_s, axis=1)
    return np.asarray(tokens / _WINDOW_S, np.float64)


def _p99(ttft_ms: Floats, arrived_s: Floats, begin_s: float, end_s: float) -> float:
    inside = (arrived_s >= begin_s) & (arrived_s < end_s)
    return round(float(np.quantile(ttft_ms[inside], 0.99)), 1)
