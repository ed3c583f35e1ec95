"""Greedy output equals that of transformers, token for token, however a step is cut."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel
from paceline_engine.pacing.pacer import NoPacer
from paceline_testing.clock import ManualClock
from paceline_testing.embedded_model import transformers_model
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

pytestmark = pytest.mark.model

NEW_TOKENS = 16
REFERENCE_BATCH = 8
FEW = 12
"""Prompts of a test that computes them in many small steps."""


@dataclass(frozen=True)
class Case:
    prompt_ids: list[int]
    output_ids: list[int]


@dataclass(frozen=True)
class Answer:
    token_ids: list[int]
    cached_tokens: int


@pytest.fixture(scope="module")
def loaded(embedded_model: LoadedModel) -> LoadedModel:
    return embedded_model


@pytest.fixture(scope="module")
def cases(loaded: LoadedModel, prompts: list[str]) -> list[Case]:
    """What transformers makes of each prompt, from the same file, in float32."""
    tokenizer = Tokenizer.from_str(loaded.tokenizer.tokenizer_json)
    model = transformers_model()
    prompt_ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    by_length = sorted(range(len(prompts)), key=lambda number: len(prompt_ids[number]))
    found: dict[int, Case] = {}
    for start in range(0, len(prompts), REFERENCE_BATCH):
        numbers = by_length[start : start + REFERENCE_BATCH]
        found |= zip(numbers, _references(model, [prompt_ids[n] for n in numbers]), strict=True)
    return [found[number] for number in range(len(prompts))]


def _references(model: Any, prompt_ids: list[list[int]]) -> list[Case]:
    """Generate for prompts of about one length, padded on the left."""
    longest = max(map(len, prompt_ids))
    rows = [[0] * (longest - len(ids)) + ids for ids in prompt_ids]
    masks = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in prompt_ids]
    out = model.generate(
        torch.tensor(rows),
        attention_mask=torch.tensor(masks),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    answers = [
        _until(model.generation_config.eos_token_id, row) for row in out.sequences[:, longest:]
    ]
    best = torch.stack(out.scores).topk(2).values  # [tokens, prompts, 2]
    for place, answer in enumerate(answers):
        margins = best[: len(answer), place, 0] - best[: len(answer), place, 1]
        # Float noise between two implementations is 1e-4 at most: no choice here may hang on it.
        assert margins.min() > 1e-3, "a prompt has a near tie: choose another"
    return [Case(ids, answer) for ids, answer in zip(prompt_ids, answers, strict=True)]


def _until(eos: int, tokens: torch.Tensor) -> list[int]:
    """Leave out the padding of a row that ended before the others of its batch."""
    found: list[int] = tokens.tolist()
    return found[: found.index(eos) + 1] if eos in found else found


def _engine(
    loaded: LoadedModel, limits: Limits, *, num_blocks: int | None = None, overlap: bool = False
) -> Engine:
    capacity = loaded.capacity
    if num_blocks is not None:
        capacity = replace(capacity, num_blocks=num_blocks)
    return Engine(
        loaded.runner,
        loaded.info,
        capacity,
        NoPacer(),
        limits=limits,
        clock=ManualClock(),
        options=EngineOptions(overlap=overlap),
    )


def _answers(
    engine: Engine, cases: Sequence[Case], *, max_tokens: int = NEW_TOKENS
) -> list[Answer]:
    """Submit everything at once and run until the engine is idle."""
    for number, case in enumerate(cases):
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
        engine.submit(Submit(str(number), case.prompt_ids, sampling))
    token_ids: dict[str, list[int]] = {str(number): [] for number in range(len(cases))}
    cached: dict[str, int] = dict.fromkeys(token_ids, 0)
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None
            token_ids[output.id] += output.token_ids
            cached[output.id] += output.cached_tokens
    return [Answer(token_ids[id_], cached[id_]) for id_ in token_ids]


def _tokens(answers: Sequence[Answer]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def _expected(cases: Sequence[Case]) -> list[list[int]]:
    return [case.output_ids for case in cases]


def test_alone(loaded: LoadedModel, cases: list[Case]) -> None:
    """One prompt at a time: the plain case."""
    engine = _engine(loaded, Limits(max_batch_size=1, token_budget=8192))

    assert [_answers(engine, [case])[0].token_ids for case in cases] == _expected(cases)


def test_overlapping_steps_change_no_token(loaded: LoadedModel, cases: list[Case]) -> None:
    """Each decode begins with a token that the host has not seen yet."""
    engine = _engine(loaded, Limits(4, 40), overlap=True)

    answers = _answers(engine, cases[:6])

    assert _tokens(answers) == [case.output_ids for case in cases[:6]]
    assert engine.load().overlap_fallbacks == 0


def test_batched(loaded: LoadedModel, cases: list[Case]) -> None:
    """All prompts in one batch: rows of very different lengths share each step."""
    engine = _engine(loaded, Limits(max_batch_size=32, token_budget=8192))

    assert _tokens(_answers(engine, cases)) == _expected(cases)


@pytest.mark.parametrize("token_budget", [7, 13, 33, 100])
def test_chunked(loaded: LoadedModel, cases: list[Case], token_budget: int) -> None:
    """Prompts cut at sizes that no block divides, beside the decodes of others."""
    engine = _engine(loaded, Limits(max_batch_size=6, token_budget=token_budget))

    assert _tokens(_answers(engine, cases[:FEW])) == _expected(cases[:FEW])


def test_one_token_at_a_time(loaded: LoadedModel, cases: list[Case]) -> None:
    """A prompt that is fed token by token is a prefill of single rows."""
    short = [case for case in cases if len(case.prompt_ids) <= 20]
    engine = _engine(loaded, Limits(max_batch_size=1, token_budget=1))

    assert len(short) >= 5
    assert _tokens(_answers(engine, short)) == _expected(short)


def test_prefix_hits(loaded: LoadedModel, cases: list[Case]) -> None:
    """A prompt whose first blocks are found in the cache is answered as one that is not."""
    engine = _engine(loaded, Limits(max_batch_size=8, token_budget=64))
    cold, warm = _answers(engine, cases), _answers(engine, cases)

    long = [i for i, case in enumerate(cases) if len(case.prompt_ids) > 16]
    assert all(warm[i].cached_tokens >= 16 for i in long)
    assert len(long) > 20
    assert _tokens(cold) == _expected(cases)
    assert _tokens(warm) == _expected(cases)


def test_preempted(loaded: LoadedModel, cases: list[Case]) -> None:
    """A request that lost its blocks and is computed again goes on where it was."""
    short = [case for case in cases if len(case.prompt_ids) <= 20]
    limits = Limits(max_batch_size=8, token_budget=256)
    roomy, tight = _engine(loaded, limits), _engine(loaded, limits, num_blocks=10)
    expected, answers = (_answers(engine, short, max_tokens=40) for engine in (roomy, tight))

    assert roomy.load().preemptions == 0
    assert tight.load().preemptions > 0
    assert _tokens(answers) == _tokens(expected)
