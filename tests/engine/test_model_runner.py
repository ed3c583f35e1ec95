"""Steps launched one behind the other on the model give what they give one after the other."""

from pathlib import Path

import pytest
import torch

from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.model.decoder import Decoder
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.runner.token_copies import TokenCopies
from paceline_engine.sampling.cpu_sampler import CpuSampler
from paceline_engine.sampling.sampler import SampledTokens
from paceline_testing.clock import ManualClock
from paceline_testing.sampling_reference import AskingSampler
from paceline_testing.tiny_engine import TinyEngine, run_to_end
from paceline_wire import Output, Sampling, Submit
from paceline_wire.limits import Limits

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
        options=EngineOptions(overlap=overlap),
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


ASKING = [
    Sampling(9, temperature=0.0, ignore_eos=True, logprobs=1, frequency_penalty=0.5),
    Sampling(9, temperature=0.7, seed=4, repetition_penalty=1.8, presence_penalty=0.9),
    Sampling(9, temperature=1.0, seed=6, min_tokens=8, min_p=0.05, logit_bias={7: 4.0}),
    Sampling(9, temperature=0.8, seed=9, logprobs=0, prompt_logprobs=1, ignore_eos=True),
]


@pytest.mark.parametrize("kind", [CpuSampler, AskingSampler])
def test_what_is_asked_of_scores_overlaps_too(
    kind: type[CpuSampler | AskingSampler], tiny: TinyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Penalties count the token on its way, logprobs are given with it; nobody waits."""
    given = []
    for overlap in (False, True):
        sampler = kind(tiny.loaded.info.eos_token_ids, b"salt")
        monkeypatch.setattr(tiny.loaded.runner, "_sampler", sampler)
        engine = an_engine(tiny, overlap=overlap)
        engine.submit(Submit("plain", PROMPTS[0], SAMPLINGS[0]))
        outputs = [engine.step() for _ in range(3)]
        for number, sampling in enumerate(ASKING):
            engine.submit(Submit(str(number), PROMPTS[number], sampling))
        while not engine.is_idle:
            outputs.append(engine.step())
        given.append(
            {
                id: [
                    (output.token_ids, output.logprobs, output.prompt_logprobs)
                    for step in outputs
                    for output in step
                    if output.id == id
                ]
                for id in ("plain", *map(str, range(len(ASKING))))
            }
        )
        assert engine.load().overlap_fallbacks == 0

    assert given[0] == given[1]
    assert all(len(told) == 1 for _, told, _ in given[0]["0"])


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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_tokens_of_two_steps_do_not_mix() -> None:
    """Each of the two in flight has memory of its own."""
    device = torch.device("cuda")
    copies = TokenCopies(device, 8)

    first = copies.start(SampledTokens(torch.arange(8, device=device)))
    second = copies.start(SampledTokens(torch.arange(8, 12, device=device)))

    assert first().token_ids == list(range(8))
    assert second().token_ids == list(range(8, 12))
