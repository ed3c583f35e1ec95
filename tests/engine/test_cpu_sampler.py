"""The sampler draws from the distribution that was asked for, the same whatever is beside a row."""

from collections import Counter
from typing import Any

import pytest
import torch

from paceline_engine.core.request import Request
from paceline_engine.sampling.cpu_sampler import CpuSampler, uniform
from paceline_engine.sampling.sampler import NOT_A_TOKEN
from paceline_wire import Sampling

VOCAB = 1000
EOS = 7


def _tokens(sampler: CpuSampler, logits: torch.Tensor, requests: list[Request]) -> list[int]:
    return sampler.sample(logits, requests).on_host().token_ids


def _request(
    id_: str = "a",
    *,
    position: int = 5,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    seed: int | None = None,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    stop_token_ids: tuple[int, ...] = (),
) -> Request:
    sampling = Sampling(
        max_tokens=9,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=seed,
        min_tokens=min_tokens,
        ignore_eos=ignore_eos,
        stop_token_ids=stop_token_ids,
    )
    return Request(id_, [0] * position, 5, sampling)


def _sampler(salt: bytes = b"salt") -> CpuSampler:
    return CpuSampler([EOS], salt)


def _logits(rows: int, *, vocab: int = VOCAB, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(0)) * spread


def test_greedy_takes_the_first_of_equal_logits() -> None:
    """A tie must not be broken by how the work was split."""
    logits = torch.zeros(2, VOCAB)
    logits[1, [40, 900]] = 1.0

    requests = [_request(temperature=0.0), _request(temperature=0.0)]

    assert _tokens(_sampler(), logits, requests) == [0, 40]


def test_a_vanishing_temperature_is_greedy() -> None:
    """Dividing by it would overflow, and the row would be no distribution."""
    logits = _logits(1)

    assert _tokens(_sampler(), logits.clone(), [_request(temperature=1e-30)]) == [
        int(logits.argmax())
    ]


KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "cold": {"temperature": 0.5},
    "top_k": {"top_k": 5},
    "top_k beyond the partial sort": {"top_k": 600},
    "top_p": {"top_p": 0.7},
    "top_p beyond the partial sort": {"top_p": 0.999, "temperature": 3.0},
    "both": {"top_k": 20, "top_p": 0.8},
}


def _probabilities(logits: torch.Tensor, request: Request) -> torch.Tensor:
    """The textbook: scale, keep the k best, of what is left keep p, normalise."""
    sampling = request.sampling
    best, ids = (logits.double() / sampling.temperature).sort(descending=True)
    probabilities = best.softmax(-1)
    if sampling.top_k:
        probabilities[sampling.top_k :] = 0
        probabilities /= probabilities.sum()
    probabilities[probabilities.cumsum(-1) - probabilities >= sampling.top_p] = 0
    return torch.zeros_like(logits, dtype=torch.float64).scatter(
        0, ids, probabilities / probabilities.sum()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_draws_follow_the_distribution(kind: str) -> None:
    """Over many seeds no token is drawn that cannot be, and each as often as it should."""
    logits = _logits(1)
    requests = [_request(seed=seed, **KINDS[kind]) for seed in range(4000)]
    expected = _probabilities(logits[0], requests[0])

    counts = Counter(_tokens(_sampler(), logits.expand(4000, -1).clone(), requests))

    drawn = torch.zeros(VOCAB, dtype=torch.float64)
    for token, count in counts.items():
        drawn[token] = count / 4000
    assert (expected[drawn > 0] > 0).all()
    # Total variation of 4,000 draws from up to 1,000 tokens stays below this by far.
    assert (drawn - expected).abs().sum() / 2 < 0.02 + 0.5 * (
        int((expected > 0).sum()) / 4000
    ) ** 0.5


def test_a_seeded_row_does_not_see_its_neighbours() -> None:
    """Same seed, same position, same logits: the same token, alone or in any batch and order."""
    logits = _logits(7)
    requests = [
        _request(str(row), seed=row, position=6 + row, **kind)
        for row, kind in enumerate(KINDS.values())
    ]
    sampler = _sampler()

    alone = [
        _tokens(sampler, logits[row : row + 1].clone(), [requests[row]])[0] for row in range(7)
    ]

    assert _tokens(sampler, logits.clone(), requests) == alone
    assert _tokens(sampler, logits.flip(0), requests[::-1]) == alone[::-1]


def test_without_a_seed_each_request_draws_for_itself() -> None:
    """Two users with one prompt get two answers; a request computed again gets its own again."""
    logits = _logits(1, spread=1.0).expand(50, -1)
    requests = [_request(str(number)) for number in range(50)]

    first, again = (_tokens(_sampler(), logits.clone(), requests) for _ in range(2))

    assert first == again
    assert len(set(first)) > 10
    assert _tokens(_sampler(b"another run"), logits.clone(), requests) != first


def test_an_output_cannot_end_before_its_least_length() -> None:
    """The ends are the model's and the request's own; ids beyond the vocabulary are none."""
    logits = torch.zeros(3, VOCAB)
    logits[:, EOS], logits[:, 8], logits[:, 9] = 3.0, 2.0, 1.0
    requests = [
        _request(temperature=0.0, min_tokens=1, stop_token_ids=(8, 10**9, -1)),
        _request(temperature=0.0, min_tokens=1, ignore_eos=True),
        _request(temperature=0.0, min_tokens=1, position=6),
    ]

    assert _tokens(_sampler(), logits, requests) == [9, EOS, EOS]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_is_not_a_number_is_no_token(temperature: float) -> None:
    """One broken row must not take a token from nowhere, nor spoil its neighbours."""
    logits = _logits(2)
    logits[0, 3] = torch.nan
    requests = [_request(temperature=temperature, seed=1) for _ in range(2)]

    tokens = _tokens(_sampler(), logits.clone(), requests)

    assert tokens[0] == NOT_A_TOKEN
    assert tokens[1] == _tokens(_sampler(), logits[1:].clone(), requests[1:])[0]


def test_draws_are_uniform_and_differ_by_seed_and_position() -> None:
    draws = torch.tensor([[uniform(seed, at) for at in range(100)] for seed in range(-50, 50)])

    assert draws.unique().numel() > 9_900
    assert draws.min() > 0
    assert draws.max() < 1
    assert (draws.flatten().histc(10, 0, 1) / 10_000 - 0.1).abs().max() < 0.015
