"""In bfloat16 a CPU chooses the tokens that transformers chooses, where rounding cannot decide."""

import copy
from collections.abc import Iterator

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from paceline_engine.core.batch import Batch, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.settings import Settings
from paceline_testing.embedded_model import transformers_model
from paceline_wire import Sampling

pytestmark = [pytest.mark.model, pytest.mark.slow]

NEW_TOKENS = 12
FEW = 4


def _logits(loaded: LoadedModel, token_ids: list[int], prompt: int) -> Iterator[Tensor]:
    """Prefill `prompt` tokens but the last, then decode token by token; yield each [vocab]."""
    blocks = list(range(1, 2 + len(token_ids) // loaded.capacity.block_size))

    def chunk(row: int, start: int, count: int, *, is_decode: bool) -> ScheduledChunk:
        sampling = Sampling(max_tokens=1, temperature=0.0)
        request = Request("r", token_ids, len(token_ids), sampling, row=row, block_ids=blocks)
        return ScheduledChunk(request, start, count, samples=is_decode, is_decode=is_decode)

    prefill = chunk(0, 0, prompt - 1, is_decode=False)
    loaded.runner.logits(Batch((prefill,), num_decodes=0))
    for row, last in enumerate(range(prompt - 1, len(token_ids)), start=1):
        # Each in a row of its own: in the same one the runner decodes what it sampled there.
        decode = chunk(row, last, 1, is_decode=True)
        yield loaded.runner.logits(Batch((decode,), num_decodes=1))[0].float()


def test_tokens_are_those_of_transformers_where_its_margin_is_above_rounding(
    prompts: list[str],
) -> None:
    """Rounding is what bfloat16 moves transformers' own logits by, beside float32."""
    loaded = load_model(
        Settings(device="cpu", dtype="bfloat16", kv_cache_bytes=1 << 26), lambda *_told: None
    )
    tokenizer = Tokenizer.from_str(loaded.tokenizer.tokenizer_json)
    exact = transformers_model()
    rounded = copy.deepcopy(exact).bfloat16()
    compared = places = 0
    for prompt in prompts[:FEW]:
        ids = tokenizer.encode(prompt).ids
        with torch.inference_mode():
            told = rounded.generate(
                torch.tensor([ids]), max_new_tokens=NEW_TOKENS, do_sample=False
            )[0]
            theirs = rounded(told[None]).logits[0, len(ids) - 1 : -1].float()
            wide = exact(told[None]).logits[0, len(ids) - 1 : -1]
        best = theirs.topk(2).values
        everything = _logits(loaded, told[:-1].tolist(), len(ids))
        tokens = told[len(ids) :].tolist()
        for place, (token, ours) in enumerate(zip(tokens, everything, strict=True)):
            places += 1
            rounding = float((theirs[place] - wide[place]).abs().max())
            if float(best[place, 0] - best[place, 1]) <= 2 * rounding:
                continue
            compared += 1
            assert int(ours.argmax()) == token

    assert compared > places / 4, f"{compared} of {places} choices are above rounding"
