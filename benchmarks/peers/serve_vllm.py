"""vLLM for CPUs as a peer: its engine in this process.

FOLDER/vllm/bin/python benchmarks/peers/serve_vllm.py SETUP
"""

from collections.abc import Iterable

import vllm
from vllm import (
    EngineArgs,
    LLMEngine,
    SamplingParams,
)

from peers.closed_loop import serve_peer
from peers.setup import Identity, Setup


class VllmPeer:
    """See `closed_loop.Peer`."""

    def __init__(self, setup: Setup) -> None:
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=setup.model,
                dtype="float32" if setup.precision == "float32" else "auto",
                max_model_len=2048,
                max_num_seqs=setup.concurrency,
                max_num_batched_tokens=setup.token_budget,
                enable_prefix_caching=False,
                disable_log_stats=True,
                speculative_config=_lookup(setup.draft_tokens) if setup.draft_tokens else None,
            )
        )
        self._seen: dict[str, int] = {}

    @property
    def identity(self) -> Identity:
        """See `closed_loop.Peer`."""
        dtype = str(self._engine.vllm_config.model_config.dtype)
        return Identity(vllm.__version__, dtype.removeprefix("torch."))

    def send(self, number: int, prompt: list[int], output_tokens: int) -> None:
        """See `closed_loop.Peer`."""
        params = SamplingParams(
            temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False
        )
        self._seen[str(number)] = 0
        self._engine.add_request(str(number), {"prompt_token_ids": prompt}, params)

    def step(self) -> Iterable[tuple[int, int]]:
        """See `closed_loop.Peer`."""
        made = []
        for output in self._engine.step():
            total = len(output.outputs[0].token_ids)
            made.append((int(output.request_id), total - self._seen[output.request_id]))
            self._seen[output.request_id] = total
        return made


def _lookup(draft_tokens: int) -> dict[str, object]:
    """Speculative decoding by prompt lookup, with as many draft tokens as ours."""
    return {
        "method": "ngram",
        "num_speculative_tokens": draft_tokens,
        "prompt_lookup_max": 3,
        "prompt_lookup_min": 3,
    }


if __name__ == "__main__":
    serve_peer(VllmPeer)
