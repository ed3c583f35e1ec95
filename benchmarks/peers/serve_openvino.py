"""OpenVINO GenAI as a peer: its continuous batching in this process.

FOLDER/openvino/bin/python benchmarks/peers/serve_openvino.py SETUP
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino._offline_transformations as transformations
import openvino_genai

from peers.closed_loop import serve_peer
from peers.setup import Identity, Setup

_FLOAT32 = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
_MATCHED_TOKENS = 3
"""That lookup searches for, as the others do."""


class OpenvinoPeer:
    """See `closed_loop.Peer`."""

    def __init__(self, setup: Setup) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        if setup.token_budget is not None:
            scheduler.max_num_batched_tokens = setup.token_budget
        scheduler.max_num_seqs = setup.concurrency
        scheduler.cache_size = 1  # GB, as Paceline's default
        scheduler.enable_prefix_caching = False
        self._draft_tokens = setup.draft_tokens
        properties = _FLOAT32 if setup.precision == "float32" else {}
        lookup = {"prompt_lookup": True} if setup.draft_tokens else {}
        self.identity = Identity(
            openvino_genai.__version__, _precision(Path(setup.model), setup.precision, properties)
        )
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            setup.model, scheduler, "CPU", {**properties, **lookup}
        )
        self._running: dict[int, Any] = {}
        self._sent = 0

    def send(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """See `closed_loop.Peer`."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
        if self._draft_tokens:
            config.num_assistant_tokens = self._draft_tokens
            config.max_ngram_size = _MATCHED_TOKENS
        ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self._sent += 1  # ids are new over all runs
        self._running[number] = self._pipeline.add_request(self._sent, ids, config)

    def step(self) -> Iterable[tuple[int, int]]:
        """See `closed_loop.Peer`."""
        self._pipeline.step()
        made = []
        for number, handle in list(self._running.items()):
            while handle.can_read():
                count = sum(len(output.generated_ids) for output in handle.read().values())
                made.append((number, count))
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                del self._running[number]
        return made


def _precision(folder: Path, weights: str, properties: dict[str, str]) -> str:
    """Tell what the model says of itself when it is compiled as the pipeline does, which is mute.

    The type of the KV cache is that of the paged model's inputs: its property tells another one.
    """
    core = openvino.Core()
    model = core.read_model(folder / "openvino_model.xml")
    transformations.paged_attention_transformation(model)
    compiled = core.compile_model(model, "CPU", properties)
    inference = compiled.get_property("INFERENCE_PRECISION_HINT").to_string()
    told = f"{inference}, KV cache {compiled.input('key_cache.0').get_element_type().to_string()}"
    if weights not in {"int8", "int4"}:
        return told
    group = compiled.get_property("DYNAMIC_QUANTIZATION_GROUP_SIZE")
    return f"{weights} weights, {told}, dynamic quantisation in groups of {group}"


if __name__ == "__main__":
    serve_peer(OpenvinoPeer)
