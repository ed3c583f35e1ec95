"""Paceline as a peer: its engine, stepped in this process.

python benchmarks/peers/serve_paceline.py TOKEN_BUDGET CONCURRENCY DRAFT_TOKENS
"""

import sys
import time
from collections.abc import Iterable

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from peers.closed_loop import serve, take_stdout


class PacelinePeer:
    """See `closed_loop.Peer`."""

    def __init__(self, token_budget: int, concurrency: int, draft_tokens: int) -> None:
        model = load_model(Settings(device="cpu"), lambda _stage, _fraction: None)
        limits = Limits(max_batch_size=concurrency, token_budget=token_budget)
        self._engine = Engine(
            model.runner,
            model.info,
            model.capacity,
            # Guesses need a price; where nothing else is asked of it, a pacer only takes time.
            make_pacer(model.info, model.capacity) if draft_tokens else NoPacer(),
            limits=limits,
            clock=time.perf_counter,
            options=EngineOptions(
                prefix_caching=False, draft_tokens=draft_tokens
            ),  # as with the others
        )

    def send(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """See `closed_loop.Peer`."""
        sampling = Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        self._engine.submit(Submit(str(number), prompt, sampling, arrived_at=time.perf_counter()))

    def step(self) -> Iterable[tuple[int, int]]:
        """See `closed_loop.Peer`."""
        return [(int(output.id), len(output.token_ids)) for output in self._engine.step()]


if __name__ == "__main__":
    answers = take_stdout()
    serve(PacelinePeer(*map(int, sys.argv[1:])), answers)
