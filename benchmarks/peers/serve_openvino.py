"""OpenVINO GenAI as a peer: continuous batching, weights, activations and KV cache in float32.

FOLDER/openvino/bin/python benchmarks/peers/serve_openvino.py MODEL TOKEN_BUDGET CONCURRENCY
"""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports] - only its own environment has it
import openvino_genai  # pyright: ignore[reportMissingImports] - only its own environment has it

from peers.closed_loop import serve, take_stdout


class OpenvinoPeer:
    """See `closed_loop.Peer`."""

    def __init__(self, model: str, token_budget: int, concurrency: int) -> None:
        config = openvino_genai.SchedulerConfig()
        config.max_num_batched_tokens = token_budget
        config.max_num_seqs = concurrency
        config.cache_size = 1  # GB, as Paceline's default
        config.enable_prefix_caching = False
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            model,
            config,
            "CPU",
            {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
        )
        self._running: dict[int, Any] = {}
        self._sent = 0

    def send(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """See `closed_loop.Peer`."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_tokens
        config.ignore_eos = True
        config.do_sample = False
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


if __name__ == "__main__":
    answers = take_stdout()
    serve(OpenvinoPeer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])), answers)
