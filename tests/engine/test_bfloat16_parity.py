"""In bfloat16 a CPU chooses the tokens that transformers chooses, where rounding cannot decide."""

import copy
from dataclasses import replace

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


def _next_logits(loaded: LoadedModel, token_ids: list[int]) -> Tensor:  # [vocab]
    """Decode the last token behind the others."""
    blocks = list(range(1, 2 + len(token_ids) // loaded.capacity.block_size))
    sampling = Sampling(max_tokens=1, temperature=0.0)
    request = Request("r", token_ids, len(token_ids), sampling, row=0, block_ids=blocks)
    last = len(token_ids) - 1
    prompt = ScheduledChunk(request, 0, last, samples=False, is_decode=False)
    decode = replace(prompt, start=last, count=1, samples=True, is_decode=True)
    loaded.runner.logits(Batch((prompt,), num_decodes=0))
    return loaded.runner.logits(Batch((decode,), num_decodes=1))[0].float()


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
        for place, token in enumerate(told[len(ids) :].tolist()):
            places += 1
            rounding = float((theirs[place] - wide[place]).abs().max())
            if float(best[place, 0] - best[place, 1]) <= 2 * rounding:
                continue
            compared += 1
            ours = _next_logits(loaded, told[: len(ids) + place].tolist())
            assert int(ours.argmax()) == token

    assert compared > places / 4, f"{compared} of {places} choices are above rounding"
