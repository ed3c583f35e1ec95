"""Steps launched one behind the other on the model give what they give one after the other."""

from pathlib import Path

import pytest
import torch

from paceline_engine.engine import Engine
from paceline_engine.limits import Limits
from paceline_engine.model.decoder import Decoder
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.running.host_tokens import HostTokens
from paceline_engine.running.launcher import ModelLauncher
from paceline_engine.wire import Output, Sampling, Submit
from paceline_testing.clock import ManualClock
from paceline_testing.tiny_engine import TinyEngine, run_to_end

PROMPTS = [[5 + 7 * i % 250 for i in range(41)], [9, 8, 7], [11], list(range(20, 43))]
SAMPLINGS = [
    Sampling(12, temperature=0.0, ignore_eos=True),
    Sampling(9, temperature=0.8, seed=3, ignore_eos=True),
    Sampling(12, temperature=1.0, seed=5, top_p=0.9, ignore_eos=True),
    Sampling(7, temperature=1.0, seed=7, top_k=5, ignore_eos=True),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return TinyEngine(folder)


def an_engine(tiny: TinyEngine, *, overlap: bool, token_budget: int = 512) -> Engine:
    loaded = tiny.loaded
    return Engine(
        loaded.runner,
        loaded.info,
        loaded.capacity,
        NoPacer(),
        limits=Limits(16, token_budget),
        clock=ManualClock(),
        launcher=loaded.launcher if overlap else None,
    )


def tokens_of(outputs: dict[str, list[Output]]) -> dict[str, list[int]]:
    return {
        id: [token for each in given for token in each.token_ids] for id, given in outputs.items()
    }


@pytest.mark.parametrize("token_budget", [512, 19])
def test_overlapping_steps_change_no_token(tiny: TinyEngine, token_budget: int) -> None:
    """Greedy or drawn: the input of each decode comes from where the step before has left it."""
    given = []
    for overlap in (False, True):
        engine = an_engine(tiny, overlap=overlap, token_budget=token_budget)
        for number, (prompt, sampling) in enumerate(zip(PROMPTS, SAMPLINGS, strict=True)):
            engine.submit(Submit(str(number), prompt, sampling))
        given.append(tokens_of(run_to_end(engine)))
        assert engine.load().overlap_fallbacks == 0

    assert given[0] == given[1]


def test_what_needs_the_host_is_mixed_in(tiny: TinyEngine) -> None:
    """Steps with penalties or likelihoods follow one another; other tokens stay on the way."""
    asking = Sampling(5, temperature=0.0, ignore_eos=True, logprobs=1, frequency_penalty=0.5)
    given = []
    for overlap in (False, True):
        engine = an_engine(tiny, overlap=overlap)
        engine.submit(Submit("plain", PROMPTS[0], SAMPLINGS[0]))
        outputs = [engine.step() for _ in range(3)]
        engine.submit(Submit("asks", PROMPTS[1], asking))
        while not engine.is_idle:
            outputs.append(engine.step())
        by_id: dict[str, list[Output]] = {}
        for output in (output for step in outputs for output in step):
            by_id.setdefault(output.id, []).append(output)
        assert all(len(output.likelihoods) == 1 for output in by_id["asks"])
        given.append(tokens_of(by_id))

    assert given[0] == given[1]


def test_a_row_without_a_token_ends_its_request_alone(
    tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step behind was given a token in its place that is none; it is run again without it."""
    engine = an_engine(tiny, overlap=True)
    expected = tokens_of(run_to_end(_with(an_engine(tiny, overlap=False), "good")))
    true_logits = Decoder.logits
    steps = 0

    def broken_logits(self: Decoder, hidden: torch.Tensor) -> torch.Tensor:
        nonlocal steps
        steps += 1
        logits = true_logits(self, hidden)
        if steps == 3:
            logits[1] = torch.nan
        return logits

    monkeypatch.setattr(Decoder, "logits", broken_logits)
    _with(engine, "good", "bad")
    outputs: dict[str, list[Output]] = {}
    while not engine.is_idle:
        for output in engine.step():
            outputs.setdefault(output.id, []).append(output)

    assert outputs["bad"][-1].error == "the model's output is not a number"
    assert tokens_of(outputs)["good"] == expected["good"]


def _with(engine: Engine, *ids: str) -> Engine:
    for id in ids:
        engine.submit(Submit(id, PROMPTS[1], SAMPLINGS[0]))
    return engine


def test_without_a_gpu_tokens_need_no_copy() -> None:
    """Where they are is where the host reads them."""
    fetch = HostTokens(torch.device("cpu"), 4).fetch(torch.tensor([3, 1]))

    assert fetch() == [3, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_tokens_of_two_steps_do_not_mix() -> None:
    """Each of the two in flight has memory of its own."""
    device = torch.device("cuda")
    host_tokens = HostTokens(device, 8)

    first = host_tokens.fetch(torch.arange(8, device=device))
    second = host_tokens.fetch(torch.arange(8, 12, device=device))

    assert first() == list(range(8))
    assert second() == list(range(8, 12))


def test_ranks_do_not_overlap(tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only rank 0 has the tokens that the next step begins with."""
    assert isinstance(tiny.loaded.launcher, ModelLauncher)

    monkeypatch.setattr(tiny.loaded.group, "size", 2)

    assert tiny.loaded.launcher is None
