"""What the embedded model says, and how far another form of it is from that."""

from collections.abc import Callable

from tokenizers import Tokenizer
from torch import Tensor

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
