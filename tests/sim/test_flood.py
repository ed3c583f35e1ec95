"""A flood of batch requests beside interactive ones, on the real engine by a simulated clock."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass

import numpy as np
import pytest

from paceline_engine.core.batch import Batch, StepOutput
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.pacing import make_pacer
from paceline_sim.hardware import H100_8B
from paceline_sim.steps import step_ms
from paceline_testing.clock import ManualClock
from paceline_testing.fake_runner import DoneFlight
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Lane, Limits
from paceline_wire.step_cost import chunk_attention

FLOOD = 1000
SECONDS = 60.0
SEEDS = range(4)
COSTS = np.array(astuple(H100_8B.costs))


@dataclass(slots=True)
class SimulatedRunner:
    """Gives any token, after the time that the step would take on the hardware."""

    clock: ManualClock

    def launch(self, batch: Batch) -> DoneFlight:
        decodes, chunks = batch.chunks[: batch.num_decodes], batch.chunks[batch.num_decodes :]
        wall_ms = step_ms(
            H100_8B.dense_ms,
            COSTS,
            len(decodes),
            sum(piece.count for piece in chunks),
            sum(piece.start + 1 for piece in decodes),
            int(sum(chunk_attention(piece.count, piece.start) for piece in chunks)),
            len(batch.chunks),
        )
        self.clock.advance(wall_ms / 1e3)
        return DoneFlight(StepOutput([1 if piece.samples else None for piece in batch.chunks]))


def a_request(id: str, lane: Lane, prompt: int, output: int, at: float) -> Submit:
    sampling = Sampling(max_tokens=output, ignore_eos=True)
    return Submit(id, [1] * prompt, sampling, lane=lane, arrived_at=at)


def interactive(rate: float, seed: int) -> list[Submit]:
    """Arrivals by chance from second 2 on, prompts of 50 to 2,000 tokens, outputs up to 250."""
    chance = np.random.default_rng(seed)
    count = int(rate * SECONDS)
    arrivals = np.sort(chance.uniform(2.0, 2.0 + SECONDS, count)).tolist()
    prompts, outputs = chance.integers(50, 2000, count), chance.integers(1, 250, count)
    return [
        a_request(f"interactive {n}", "interactive", int(prompts[n]), int(outputs[n]), at)
        for n, at in enumerate(arrivals)
    ]


def flood(count: int, seed: int) -> list[Submit]:
    chance = np.random.default_rng(seed + 1)
    prompts, outputs = chance.integers(200, 2000, count), chance.integers(100, 400, count)
    return [
        a_request(f"batch {n}", "batch", int(prompts[n]), int(outputs[n]), 0.0)
        for n in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one run."""

    ttft_ms: list[float]
    """First-token times of the interactive requests."""
    batch_tokens: int


def serve(limits: Limits, arrivals: list[Submit], waiting: Iterable[Submit]) -> Served:
    """Serve until every interactive request has a first token."""
    clock = ManualClock(0.0)
    capacity = H100_8B.capacity(max_batch_size=64, max_token_budget=8192)
    info = H100_8B.model_info()
    engine = Engine(
        SimulatedRunner(clock),
        info,
        capacity,
        make_pacer(info, capacity),
        limits=limits,
        clock=clock,
        options=EngineOptions(prefix_caching=False),
    )
    for submit in waiting:
        engine.submit(submit)
    arrived_at = {submit.id: submit.arrived_at for submit in arrivals}
    first_ms: dict[str, float] = {}
    coming = iter(arrivals)
    following = next(coming, None)
    while len(first_ms) < len(arrivals):
        if engine.is_idle and following is not None:
            clock.now = max(clock.now, following.arrived_at)
        while following is not None and following.arrived_at <= clock.now:
            engine.submit(following)
            following = next(coming, None)
        for output in engine.step():
            if output.id in arrived_at and output.id not in first_ms:
                first_ms[output.id] = (clock.now - arrived_at[output.id]) * 1e3
    return Served(list(first_ms.values()), engine.load().output_tokens_by_lane["batch"])


@pytest.mark.parametrize(
    ("rate", "limits"),
    [
        (4.0, Limits(64, 8192, 50.0)),
        (8.0, Limits(64, 8192, 50.0)),
        (12.0, Limits(64, 8192, 50.0)),
        (8.0, Limits(64, 8192, 25.0)),
        (8.0, Limits(32, 8192, 50.0)),
    ],
    ids=["few", "some", "many", "short steps", "few rows"],
)
def test_a_flood_moves_interactive_first_tokens_by_a_fifth_at_most(
    rate: float, limits: Limits
) -> None:
    """A thousand batch requests wait from the start, and are still served.

    One minute has two or three requests above its p99: what a seed says of it is chance.
    """
    calm, flooded = [], []
    for seed in SEEDS:
        arrivals = interactive(rate, seed)
        calm += serve(limits, arrivals, ()).ttft_ms
        served = serve(limits, arrivals, flood(FLOOD, seed))
        flooded += served.ttft_ms
        assert served.batch_tokens > 900 * SECONDS

    assert np.percentile(flooded, 99) <= 1.2 * np.percentile(calm, 99)
