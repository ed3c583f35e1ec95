"""What the engine tells of its tokens equals what transformers computes, however steps are cut."""

from pathlib import Path

import pytest

from paceline_testing.tiny_engine import TinyEngine, run_to_end
from paceline_wire import Sampling, Submit

PROMPTS = {"long": [5 + 7 * i % 250 for i in range(41)], "short": [9, 8, 7], "one": [11]}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyEngine:
    folder: Path = tmp_path_factory.mktemp("tiny")
    return TinyEngine(folder)


@pytest.mark.parametrize("token_budget", [512, 17, 3])
def test_of_prompts_and_outputs(tiny: TinyEngine, token_budget: int) -> None:
    """In one step, in chunks, and nearly token by token."""
    sampling = Sampling(
        max_tokens=5, temperature=0.0, ignore_eos=True, logprobs=2, prompt_logprobs=1
    )

    answers = tiny.run(PROMPTS, sampling, token_budget=token_budget)

    for name, prompt_ids in PROMPTS.items():
        outputs = answers[name]
        token_ids = prompt_ids + [token for output in outputs for token in output.token_ids]
        expected = tiny.logprobs(token_ids)
        told = [*outputs[0].prompt_logprobs]
        told += [each for output in outputs for each in output.logprobs]
        assert [each.token_id for each in told] == token_ids[1:]
        for position, each in enumerate(told):
            row = expected[position]
            assert each.logprob == pytest.approx(row[each.token_id].item(), abs=2e-4)
            is_output = position >= len(prompt_ids) - 1
            assert len(each.top_ids) == (2 if is_output else 1)
            best = row.topk(len(each.top_ids)).values.tolist()
            assert each.top_logprobs == pytest.approx(best, abs=2e-4)
        assert all(not output.prompt_logprobs for output in outputs[1:])


def test_a_prefix_in_the_cache_is_scored_all_the_same(tiny: TinyEngine) -> None:
    """It is computed again for whoever asks, and still found by those who do not."""
    engine = tiny.engine()
    plain, scored = Sampling(max_tokens=1), Sampling(max_tokens=1, prompt_logprobs=0)
    prompt = PROMPTS["long"]

    for name, sampling in (("first", plain), ("scored", scored), ("again", plain)):
        engine.submit(Submit(name, prompt, sampling))
        outputs = run_to_end(engine)[name]
        assert (outputs[0].cached_tokens > 0) == (name == "again")
        told = outputs[0].prompt_logprobs
        assert len(told) == (len(prompt) - 1 if name == "scored" else 0)


def test_a_preempted_prompt_is_told_once_and_whole(tiny: TinyEngine) -> None:
    """Whether it is computed from its start again, or finds its own blocks."""
    engine = tiny.engine(token_budget=10)
    prompt = PROMPTS["long"]
    engine.submit(Submit("a", prompt, Sampling(max_tokens=2, temperature=0.0, prompt_logprobs=0)))
    engine.step()
    engine.step()
    (request,) = engine.requests.running()

    engine.requests.preempt(request)
    told = run_to_end(engine)["a"][0].prompt_logprobs

    assert request.num_preemptions == 1
    assert [each.token_id for each in told] == prompt[1:]
    expected = tiny.logprobs(prompt)
    for position, each in enumerate(told):
        assert each.logprob == pytest.approx(expected[position, each.token_id].item(), abs=2e-4)


def test_requests_that_do_not_ask_are_told_nothing(tiny: TinyEngine) -> None:
    """Beside one that does."""
    engine = tiny.engine()
    engine.submit(Submit("asks", [1, 2, 3], Sampling(max_tokens=3, logprobs=1)))
    engine.submit(Submit("plain", [1, 2, 3], Sampling(max_tokens=3)))

    outputs = run_to_end(engine)

    assert all(output.logprobs for output in outputs["asks"])
    assert not any(output.logprobs for output in outputs["plain"])
