"""Paceline as a peer: its engine, stepped in this process.

python benchmarks/peers/serve_paceline.py SETUP
"""

import time
from collections.abc import Iterable
from pathlib import Path

from paceline_engine import __version__
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.errors import EngineError
from paceline_engine.loading.load import load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from peers.closed_loop import serve_peer
from peers.gguf_types import described
from peers.setup import GGUF, Identity, Refused, Setup


class PacelinePeer:
    """See `closed_loop.Peer`."""

    def __init__(self, setup: Setup) -> None:
        try:
            model = load_model(_settings(setup), lambda _stage, _fraction: None)
        except EngineError as error:
            raise Refused(error.message) from error
        self.identity = Identity(__version__, _precision(setup, model.info.dtype))
        budget = setup.token_budget or model.capacity.max_token_budget
        limits = Limits(max_batch_size=setup.concurrency, token_budget=budget)
        self._engine = Engine(
            model.runner,
            model.info,
            model.capacity,
            # Guesses need a price; where nothing else is asked of it, a pacer only takes time.
            make_pacer(model.info, model.capacity) if setup.draft_tokens else NoPacer(),
            limits=limits,
            clock=time.perf_counter,
            options=EngineOptions(
                prefix_caching=False, draft_tokens=setup.draft_tokens
            ),  # as with the others
        )

    def send(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """See `closed_loop.Peer`."""
        sampling = Sampling(max_tokens=output_tokens, temperature=0.0, ignore_eos=True)
        self._engine.submit(Submit(str(number), prompt, sampling, arrived_at=time.perf_counter()))

    def step(self) -> Iterable[tuple[int, int]]:
        """See `closed_loop.Peer`."""
        return [(int(output.id), len(output.token_ids)) for output in self._engine.step()]


def _settings(setup: Setup) -> Settings:
    """Leave what the setup does not ask for to the engine, as its users do."""
    if setup.precision == "float32":
        return Settings(device="cpu", dtype="float32")
    if setup.precision == "int8":
        return Settings(device="cpu", quantization="int8")
    if setup.precision in GGUF:
        uri = f"file://{setup.model}"
        return Settings(device="cpu", quantization="as_stored", model_uri=uri)
    return Settings(device="cpu")


def _precision(setup: Setup, dtype: str) -> str:
    """Tell what runs."""
    if setup.precision == "int8":
        return f"int8 weights, {dtype}"
    return f"{described(Path(setup.model))}; {dtype}" if setup.precision in GGUF else dtype


if __name__ == "__main__":
    serve_peer(PacelinePeer)
