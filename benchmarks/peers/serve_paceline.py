"""Paceline as a peer: its engine, stepped in this process.

python benchmarks/peers/serve_paceline.py SETUP
"""

import time
from collections.abc import Iterable
from pathlib import Path

from paceline_engine import __version__
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from peers.closed_loop import serve_peer
from peers.gguf_types import described
from peers.setup import GGUF, Identity, Refused, Setup

_MOST_BYTES_KEPT = 1.5
"""Of the file's size: weights that were dequantised take nearly twice its bytes and more."""


class PacelinePeer:
    """See `closed_loop.Peer`."""

    def __init__(self, setup: Setup) -> None:
        model = load_model(_settings(setup), lambda _stage, _fraction: None)
        self.identity = Identity(__version__, _precision(setup, model))
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
        return Settings(device="cpu", model_uri=f"file://{setup.model}")
    return Settings(device="cpu")


def _precision(setup: Setup, model: LoadedModel) -> str:
    """Tell what runs; raise `Refused` where a GGUF file's weights were not kept as they are."""
    if setup.precision == "int8":
        return f"int8 weights, {model.info.dtype}"
    if setup.precision not in GGUF:
        return model.info.dtype
    file_bytes = Path(setup.model).stat().st_size
    if model.info.weight_bytes > _MOST_BYTES_KEPT * file_bytes:
        raise Refused(
            f"the engine does not keep the weights of a GGUF file: it holds "
            f"{model.info.weight_bytes:,} bytes of the file's {file_bytes:,}"
        )
    return f"{described(Path(setup.model))}; {model.info.dtype}"


if __name__ == "__main__":
    serve_peer(PacelinePeer)
