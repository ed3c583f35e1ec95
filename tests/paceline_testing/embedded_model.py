"""What the embedded model says, and how far another form of it is from that."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor

from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.loading.load import LoadedModel
from paceline_wire import Sampling

Divergences = Callable[[LoadedModel], list[float]]
"""How far a model is from the embedded one after each of some prompts: KL, in nats."""


def next_logprobs(loaded: LoadedModel, prompt: str) -> Tensor:  # [vocab]
    """Log-probabilities of the token after a prompt, computed in one step from block 0 on."""
    token_ids = Tokenizer.from_str(loaded.tokenizer.tokenizer_json).encode(prompt).ids
    blocks = list(range(-(-len(token_ids) // loaded.capacity.block_size)))
    sampling = Sampling(max_tokens=1, temperature=0.0)
    request = Request("r", token_ids, len(token_ids), sampling, row=0, block_ids=blocks)
    chunk = ScheduledChunk(request, 0, len(token_ids), samples=True, is_decode=False)
    return loaded.runner.logits(Batch((chunk,), num_decodes=0)).log_softmax(dim=-1)


def transformers_model() -> Any:
    """Load the embedded model by transformers, from the same file, in float32: the reference."""
    os.environ["TQDM_DISABLE"] = "1"
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415 - seconds to import

    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    path = locate("builtin://smollm2-135m-instruct", None, places).path
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
        dtype=torch.float32,
    )
