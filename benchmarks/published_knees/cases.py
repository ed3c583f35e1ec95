"""The two knees: what is fitted, what is assumed, and the SLA that the low load keeps."""

import asyncio
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from paceline_tuner.service_spec import SLA
from published_knees.devices import H100_70B_FP8, RTX_4B, Speed
from published_knees.figures import (
    FITTED_70B,
    OUTPUT_70B,
    POINTS_4B,
    POINTS_70B,
    PROMPT_70B,
    UsersPoint,
)
from published_knees.load import Rated, Served, rate, users
from published_knees.pod import Serving
from tune_report.mixes import CONVERSATION

SEEDS: Final = (1, 2, 3)
_ROOM: Final = PROMPT_70B + OUTPUT_70B + 4  # whole blocks of 16 tokens
_BUDGET, _BATCH_4B = 8192, 256
_WEIGHTS_4B_MS, _CONTEXT_4B_NS, _KV_TOKENS_4B = 5.6, 103.0, 530_000
_DRAIN_S, _LONG_DRAIN_S = 60.0, 600.0
Values = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A published figure beside the simulated one."""

    load: float
    what: str
    published: float
    simulated: float
    is_fitted: bool
    """Whether the search looked at it."""


@dataclass(frozen=True, slots=True)
class KneeCase:
    """One knee. Values are those of `parameters`, in their order."""

    name: str
    unit: str
    """What a load counts."""
    parameters: tuple[str, ...]
    start: Values
    loads: tuple[float, ...]
    """At which it is replayed."""
    seeds: tuple[int, ...]
    sla: SLA
    compare: Callable[[Values, bool], list[Figure]]
    """Simulate the published points: those that are fitted, or all."""
    play: Callable[[Values, float, SLA | None, int], Served]

    def first_token_s(self, values: Values) -> float:
        """Return what the way to the engine and back adds to each first token, in seconds."""
        named = dict(zip(self.parameters, values, strict=True))
        return named.get("way_ms", 0.0) / 1e3


def _play_70b(values: Values, load: float, sla: SLA | None, seed: int) -> Served:
    """Serve so many users for eight minutes after two, long enough for 15 answers of each."""
    return _users(values, round(load), sla, seed, begin_s=120.0, end_s=600.0)


def _users(
    values: Values, count: int, sla: SLA | None, seed: int, *, begin_s: float, end_s: float
) -> Served:
    weights_ms, token_us, context_ns, rows, _ = values
    batch = round(rows)
    hardware = H100_70B_FP8.hardware(Speed(weights_ms, token_us, context_ns), batch * _ROOM)
    serving = Serving(hardware, batch, _BUDGET, 2 * PROMPT_70B, sla)
    lengths = (PROMPT_70B, OUTPUT_70B)
    return asyncio.run(users(serving, count, lengths, begin_s=begin_s, end_s=end_s, seed=seed))


def _compare_70b(values: Values, is_whole: bool) -> list[Figure]:
    points = [p for p in POINTS_70B if is_whole or p.users in FITTED_70B]
    return [figure for point in points for figure in _point_70b(values, point)]


def _point_70b(values: Values, point: UsersPoint) -> list[Figure]:
    cycle_s = (point.ttft_ms + OUTPUT_70B * point.itl_ms) / 1e3
    begin_s = 120.0 + cycle_s
    served = _users(values, point.users, None, 1, begin_s=begin_s, end_s=begin_s + 180.0)
    is_fitted = point.users in FITTED_70B
    ttft_ms = float(np.nanmean(served.ttft_ms)) + values[-1]
    itl_ms = float(np.nanmean(served.tpot_ms))
    tokens_per_s = 1e3 * point.users * OUTPUT_70B / (ttft_ms + (OUTPUT_70B - 1) * itl_ms)
    return [
        Figure(point.users, "TTFT, mean, ms", point.ttft_ms, ttft_ms, is_fitted),
        Figure(point.users, "ITL, mean, ms", point.itl_ms, itl_ms, is_fitted),
        Figure(point.users, "tokens/s", point.tokens_per_s, tokens_per_s, is_fitted=False),
    ]


def _play_4b(values: Values, load: float, sla: SLA | None, seed: int) -> Served:
    token_us, cv, seconds = values
    hardware = RTX_4B.hardware(Speed(_WEIGHTS_4B_MS, token_us, _CONTEXT_4B_NS), _KV_TOKENS_4B)
    serving = Serving(hardware, _BATCH_4B, _BUDGET, 32_768, sla)
    offered = Rated(CONVERSATION, cv, seconds, pods=2)
    drain_s = _LONG_DRAIN_S if sla is None else _DRAIN_S
    return asyncio.run(rate(serving, offered, load, drain_s=drain_s, seed=seed))


def _compare_4b(values: Values, is_whole: bool) -> list[Figure]:  # noqa: ARG001 - all are fitted
    return [
        Figure(
            point.rps,
            "TTFT, p90, s",
            point.ttft_p90_s,
            statistics.median(
                float(np.nanquantile(_play_4b(values, point.rps, None, seed).ttft_ms, 0.9)) / 1e3
                for seed in SEEDS
            ),
            is_fitted=True,
        )
        for point in POINTS_4B
    ]


KNEE_70B: Final = KneeCase(
    "Llama-3.3-70B in FP8 on two H100",
    "users",
    ("weights_ms", "token_us", "context_ns", "rows", "way_ms"),
    (17.0, 74.0, 18.0, 86.0, 40.0),
    (25, 50, 75, 100, 150, 200),
    (1,),
    SLA(ttft_p99_ms=4000.0, tpot_p99_ms=70.0),
    _compare_70b,
    _play_70b,
)
KNEE_4B: Final = KneeCase(
    "A 4B model on two RTX PRO 6000",
    "requests a second",
    ("token_us", "arrivals_cv", "seconds"),
    (73.0, 5.7, 440.0),
    (7.5, 10, 12.5, 15, 17.5, 20),
    SEEDS,
    SLA(ttft_p99_ms=3000.0, tpot_p99_ms=200.0, objective=0.9),
    _compare_4b,
    _play_4b,
)
CASES: Final[Sequence[KneeCase]] = (KNEE_70B, KNEE_4B)
