"""Bursts under static, dynamic and continuous batching: the engine's own schedulers.

The engine runs as it is, with a clock that the steps of one simulated H100 with an 8B model move.
The same requests are offered in each way: some all the time, and twenty more at once every 25
seconds.
"""

from dataclasses import astuple, dataclass, field
from typing import Final

import msgspec
import numpy as np

from paceline_engine.core.batch import Batch, StepOutput
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.pacing import NoPacer
from paceline_engine.scheduling.static_batching import Gathering
from paceline_sim.hardware import H100_8B
from paceline_sim.steps import step_ms
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from paceline_wire.step_cost import chunk_attention
from tune_report.arrivals import Floats, arrivals, constant
from tune_report.mixes import CONVERSATION

BURST: Final = 20
EVERY_S: Final = 25.0
TTFT_S: Final = 2.0
_RPS, _DURATION_S, _DRAIN_S = 0.3, 200.0, 60.0
_STATIC, _MOST, _BUDGET = 16, 64, 8192
_SEED: Final = 1
_WAYS: Final = (
    ("static, waits for 16", _STATIC, EngineOptions(
        scheduling="dynamic", gathering=Gathering(float("inf"), has_buckets=False),
        prefix_caching=False)),
    ("dynamic, waits 0.1 s", _MOST, EngineOptions(
        scheduling="dynamic", gathering=Gathering(0.1, has_buckets=False), prefix_caching=False)),
    ("dynamic, in buckets", _MOST, EngineOptions(
        scheduling="dynamic", gathering=Gathering(0.1, has_buckets=True), prefix_caching=False)),
    ("continuous", _MOST, EngineOptions(prefix_caching=False)),
)  # fmt: skip


class BurstTrack(msgspec.Struct, frozen=True):
    """One way of batching."""

    name: str
    ttft_ms: list[float | None]
    """Of each request, in the order of their arrival; None where it had no answer."""
    in_time: float
    """Share of all requests whose first token came within two seconds."""
    unanswered: int
    padding: float
    """Share of all computed tokens."""
    ttft_p99_all_ms: float | None
    itl_p99_ms: float


class BurstScene(msgspec.Struct, frozen=True):
    """All ways."""

    arrived_s: list[float]
    bursts_s: list[float]
    burst: int
    ttft_ms: float
    offered: int
    tracks: list[BurstTrack]


@dataclass(slots=True)
class _Done:
    """A step that has run already."""

    output: StepOutput

    def result(self) -> StepOutput:
        """Return what came of it."""
        return self.output


@dataclass(slots=True)
class _Clock:
    """The time, which steps move."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class _Device:
    """Gives any token, after the time that the step takes on the simulated device."""

    clock: _Clock
    costs: Floats = field(default_factory=lambda: np.array(astuple(H100_8B.costs)))

    def launch(self, batch: Batch) -> _Done:
        """Let the step's time pass. Padding is computed as all else is."""
        decodes, chunks = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
        ms = step_ms(
            H100_8B.dense_ms,
            self.costs,
            len(decodes),
            sum(piece.count for piece in chunks),
            sum(piece.start + 1 for piece in decodes),
            int(sum(chunk_attention(piece.count, piece.start) for piece in chunks)),
            len(batch.chunks),
        )
        self.clock.now += ms / 1e3
        return _Done(StepOutput([1 if piece.samples else None for piece in batch.chunks]))


def burst_scene() -> BurstScene:
    """Serve in each way. Deterministic."""
    requests = _requests()
    return BurstScene(
        arrived_s=[round(each.arrived_at, 3) for each in requests],
        bursts_s=np.arange(EVERY_S, _DURATION_S, EVERY_S).tolist(),
        burst=BURST,
        ttft_ms=1e3 * TTFT_S,
        offered=len(requests),
        tracks=[_track(name, batch, options, requests) for name, batch, options in _WAYS],
    )


def _requests() -> list[Submit]:
    random = np.random.default_rng([_SEED, 7])
    calm = arrivals(random, constant(_RPS), _DURATION_S)
    bursts = np.repeat(np.arange(EVERY_S, _DURATION_S, EVERY_S), BURST)
    at_s = np.sort(np.concatenate([calm, bursts]))
    prompt, output, _ = CONVERSATION.draw(random, len(at_s))
    return [
        Submit(
            f"request {place}",
            [1] * int(prompt[place]),
            Sampling(max_tokens=int(output[place]), ignore_eos=True),
            lane="interactive",
            arrived_at=float(at),
        )
        for place, at in enumerate(at_s)
    ]


def _track(name: str, batch: int, options: EngineOptions, requests: list[Submit]) -> BurstTrack:
    clock = _Clock()
    capacity = H100_8B.capacity(max_batch_size=_MOST, max_token_budget=_BUDGET)
    engine = Engine(
        _Device(clock),
        H100_8B.model_info(),
        capacity,
        NoPacer(),
        limits=Limits(batch, _BUDGET),
        clock=clock,
        options=options,
    )
    first_s, gaps_ms = _serve(engine, clock, requests)
    arrived_s = np.array([each.arrived_at for each in requests])
    ttft_ms = 1e3 * (np.array([first_s.get(each.id, np.inf) for each in requests]) - arrived_s)
    load = engine.load()
    useful = load.prompt_tokens + load.output_tokens
    return BurstTrack(
        name=name,
        ttft_ms=[None if np.isinf(ms) else round(float(ms), 1) for ms in ttft_ms],
        in_time=round(float(np.mean(ttft_ms <= 1e3 * TTFT_S)), 4),
        unanswered=int(np.sum(np.isinf(ttft_ms))),
        padding=round(load.padding_tokens / (load.padding_tokens + useful), 4),
        ttft_p99_all_ms=_p99(ttft_ms),
        itl_p99_ms=round(float(np.quantile(gaps_ms, 0.99)), 2),
    )


def _serve(
    engine: Engine, clock: _Clock, requests: list[Submit]
) -> tuple[dict[str, float], list[float]]:
    """Serve until all are answered or the time is up; return first tokens and all gaps."""
    first_s: dict[str, float] = {}
    last_s: dict[str, float] = {}
    gaps_ms: list[float] = []
    place = 0
    while clock.now < _DURATION_S + _DRAIN_S:
        while place < len(requests) and requests[place].arrived_at <= clock.now:
            engine.submit(requests[place])
            place += 1
        if place == len(requests) and engine.is_idle:
            break
        before = clock.now
        for output in engine.step():
            if output.id in last_s:
                gaps_ms.append(1e3 * (clock.now - last_s[output.id]))
            first_s.setdefault(output.id, clock.now)
            last_s[output.id] = clock.now
        if clock.now == before:
            clock.now = _later(engine, before, requests[place:])
    return first_s, gaps_ms


def _later(engine: Engine, now: float, coming: list[Submit]) -> float:
    """Return when to look again: soon while a batch is gathered, else when somebody comes."""
    next_s = coming[0].arrived_at if coming else _DURATION_S + _DRAIN_S
    return min(next_s, now + 0.005) if engine.is_gathering else max(next_s, now)


def _p99(values: Floats) -> float | None:
    if not len(values) or np.isinf(values).any():
        return None
    return round(float(np.quantile(values, 0.99)), 1)
