"""What a request asks to change in the scores: against float64 and transformers' own processors."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.request import Request
from paceline_engine.sampling.cpu_sampler import CpuSampler
from paceline_wire import Sampling

VOCAB = 60
EOS = 7
PROMPT = [3, 9, 9, 30, 7]
OUTPUT = [4, 9, 4, 4, 58]


def _tokens(sampler: CpuSampler, logits: torch.Tensor, requests: list[Request]) -> list[int]:
    return sampler.sample(logits, requests).on_host().token_ids


def _request(output: list[int] = OUTPUT, **sampling: Any) -> Request:
    wanted = {"max_tokens": 99, "temperature": 0.0, **sampling}
    return Request("a", PROMPT + output, len(PROMPT), Sampling(**wanted))


def _logits(rows: int = 1, *, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def _adjusted(request: Request, logits: torch.Tensor) -> torch.Tensor:
    """The textbook, token by token in float64."""
    sampling = request.sampling
    scores = logits.double().clone()
    output = request.token_ids[request.num_prompt_tokens :]
    for token, bias in sampling.logit_bias.items():
        scores[token] += bias
    for token in range(VOCAB):
        if token in request.token_ids:
            factor = sampling.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        count = output.count(token)
        scores[token] -= count * sampling.frequency_penalty
        scores[token] -= (count > 0) * sampling.presence_penalty
    return scores


PENALTIES = st.fixed_dictionaries(
    {
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.floats(0.1, 3),
        "logit_bias": st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=9),
    }
)


@settings(deadline=None, max_examples=60)
@given(
    asked=st.lists(PENALTIES, min_size=1, max_size=5),
    outputs=st.lists(st.lists(st.integers(0, VOCAB - 1), max_size=80), min_size=5, max_size=5),
    seed=st.integers(0, 1000),
)
def test_scores_follow_the_formulas_whatever_is_in_the_batch(
    asked: list[dict[str, Any]], outputs: list[list[int]], seed: int
) -> None:
    """Greedy picks the best of the scores that float64 gives, beside rows that ask for nothing."""
    requests = [_request(output, **each) for each, output in zip(asked, outputs, strict=False)]
    plain = _request()
    logits = _logits(len(requests) + 1, seed=seed)

    tokens = _tokens(CpuSampler([EOS], b""), logits.clone(), [*requests, plain])

    for row, request in enumerate(requests):
        scores = _adjusted(request, logits[row])
        assert scores[tokens[row]] >= scores.max() - 1e-4
    assert tokens[-1] == int(logits[-1].argmax())


def test_the_scores_are_those_of_transformers() -> None:
    """Repetition penalty and min-p, where its processors exist."""
    from transformers import (  # noqa: PLC0415 - seconds to import
        MinPLogitsWarper,
        RepetitionPenaltyLogitsProcessor,
    )

    logits = _logits()
    ids: Any = torch.tensor([PROMPT + OUTPUT])
    theirs = RepetitionPenaltyLogitsProcessor(1.7)(ids, logits.clone())
    theirs = MinPLogitsWarper(0.1)(ids, theirs)
    expected = theirs[0].softmax(-1)

    requests = [
        _request(temperature=1.0, repetition_penalty=1.7, min_p=0.1, seed=seed)
        for seed in range(4000)
    ]
    drawn = _tokens(CpuSampler([EOS], b""), logits.expand(4000, -1).clone(), requests)

    share = torch.bincount(torch.tensor(drawn), minlength=VOCAB) / 4000
    assert (expected[share > 0] > 0).all(), "a token below min_p was drawn"
    assert (share - expected).abs().sum() / 2 < 0.04


def test_a_penalty_counts_each_token_once_as_the_output_grows() -> None:
    """Whether it is asked at every step or only at the last one."""
    asked = {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.3}
    sampler = CpuSampler([EOS], b"")
    stepwise = _request([], **asked)
    logits = _logits()
    for token in OUTPUT * 30:
        _tokens(sampler, logits.clone(), [stepwise])
        stepwise.token_ids.append(token)

    at_once = _request(OUTPUT * 30, **asked)

    assert _tokens(sampler, logits.clone(), [stepwise]) == _tokens(
        sampler, logits.clone(), [at_once]
    )
    scores = _adjusted(at_once, logits[0])
    assert scores[_tokens(sampler, logits.clone(), [stepwise])[0]] == scores.max()


def test_a_bias_forbids_and_forces() -> None:
    """-100 and 100 are the API's words for never and always."""
    logits = _logits()
    best = int(logits.argmax())

    forbidden, forced = _tokens(
        CpuSampler([EOS], b""),
        logits.expand(2, -1).clone(),
        [_request(logit_bias={best: -100.0}), _request(logit_bias={20: 100.0})],
    )

    assert forbidden == int(logits[0].topk(2).indices[1])
    assert forced == 20


def test_min_p_keeps_only_what_is_likely_enough() -> None:
    """0.5 leaves the tokens at least half as likely as the best; 1 leaves the best."""
    logits = torch.log(torch.tensor([[0.4, 0.3, 0.19, 0.11]]))
    sampler = CpuSampler([], b"")

    def drawn(min_p: float) -> set[int]:
        requests = [_request(temperature=1.0, min_p=min_p, seed=seed) for seed in range(300)]
        return set(_tokens(sampler, logits.expand(300, -1).clone(), requests))

    assert drawn(0.5) == {0, 1}
    assert drawn(1.0) == {0}
    assert drawn(0.0) == {0, 1, 2, 3}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_those_of_the_model_itself(dtype: torch.dtype) -> None:
    """Not of the scores after temperature, bias and penalties."""
    logits = _logits(2).to(dtype)
    requests = [
        _request(logprobs=3, logit_bias={20: 100.0}, temperature=0.3, frequency_penalty=2.0),
        _request(logprobs=0),
    ]
    requests[1].id = "another"

    tokens, logprobs = CpuSampler([EOS], b"").sample(logits.clone(), requests).on_host()

    expected = logits.double().log_softmax(-1)
    best = expected[0].topk(3)
    first, second = (logprobs[request.id] for request in requests)
    assert first.token_id == tokens[0] == 20
    assert first.logprob == pytest.approx(expected[0, 20].item(), abs=1e-5)
    assert first.rank == int((expected[0] > expected[0, 20]).sum()) + 1
    assert first.top_ids == best.indices.tolist()
    assert first.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-5)
    assert (second.rank, second.top_ids) == (1, [])
