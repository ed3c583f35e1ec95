"""What one engine gives for what it takes, step by step."""

import pytest

from paceline_engine.core.batch import Batch
from paceline_engine.engine.stats import _lengths
from paceline_engine.errors import RequestError
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit, answer
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits


def test_the_same_requests_get_the_same_answers_under_any_limits() -> None:
    """Batching, chunking and preemption are invisible in the output."""
    submits = [a_submit(f"{n}", list(range(n, 3 * n + 5)), max_tokens=10) for n in range(12)]
    answers = []
    for limits in (Limits(1, 64), Limits(8, 64), Limits(8, 9), Limits(3, 5)):
        under_test = EngineUnderTest(a_capacity(num_blocks=20), limits=limits)
        under_test.submit(*submits)
        under_test.run_to_end()
        answers.append([under_test.tokens(submit.id) for submit in submits])

    expected = [answer(submit, under_test.info, 128) for submit in submits]
    assert answers == [expected] * 4


def test_a_step_is_recorded_as_the_step_model_sees_it() -> None:
    """Decodes, prefill tokens, context and attention pairs, as docs/runtime-api.md defines them."""
    under_test = EngineUnderTest(limits=Limits(8, 16))
    under_test.submit(a_submit("running", [1, 2, 3], max_tokens=9))
    under_test.step()
    under_test.submit(a_submit("long", list(range(40))))
    under_test.step()
    under_test.step()

    records = under_test.engine.log.take()

    assert [record.seq for record in records] == [0, 1, 2]
    assert [(r.decode, r.prefill) for r in records] == [(0, 3), (1, 15), (1, 15)]
    assert [record.context for record in records] == [0, 4, 5]
    assert [record.attention for record in records] == [4, 112, 15 * 15 + 112]
    assert [record.waiting_tokens for record in records] == [0, 25, 10]
    assert [record.running for record in records] == [1, 2, 2]
    assert records[-1].kv_used == 2 + 10
    assert not under_test.engine.log.take()


def test_an_aborted_request_frees_its_blocks_before_the_next_step() -> None:
    """A client that left holds no memory."""
    under_test = EngineUnderTest()
    under_test.submit(a_submit("a", max_tokens=50), a_submit("b", max_tokens=50))
    under_test.step()
    under_test.engine.abort(["a", "unknown"])

    load = under_test.engine.load()

    assert (load.running, load.kv_used_blocks) == (1, 1)
    under_test.step()
    assert under_test.finish("a") == "abort"
    assert under_test.finish("b") is None


def test_a_waiting_request_can_be_aborted() -> None:
    """It never runs."""
    under_test = EngineUnderTest(limits=Limits(1, 64))
    under_test.submit(a_submit("a"), a_submit("b"))
    under_test.step()
    under_test.engine.abort(["b"])
    under_test.run_to_end()

    assert under_test.tokens("b") == []
    assert under_test.engine.load().waiting == 0


def test_an_id_in_use_is_refused() -> None:
    """The first request goes on."""
    under_test = EngineUnderTest()

    under_test.submit(a_submit("a", max_tokens=3))
    under_test.submit(a_submit("a", max_tokens=3))
    refused = under_test.step()[0]
    under_test.run_to_end()

    assert "id must be new" in str(refused.error)
    assert len(under_test.tokens("a")) == 3


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ([], Sampling(1), "prompt_ids must hold at least one token, got none"),
        ([1, 1000], Sampling(1), "prompt_ids must be in [0, 1000), got 1000"),
        ([1, -5], Sampling(1), "prompt_ids must be in [0, 1000), got -5"),
        ([1], Sampling(0), "max_tokens must be at least 1, got 0"),
        ([1], Sampling(1, temperature=-1), "temperature must be a number of at least 0, got -1"),
        ([1], Sampling(1, temperature=float("nan")), "temperature must be a number"),
        ([1], Sampling(1, top_p=0.0), "top_p must be in (0, 1], got 0.0"),
        ([1], Sampling(1, top_k=-1), "top_k must be at least 0, got -1"),
        ([1], Sampling(1, min_tokens=2), "min_tokens must be in [0, max_tokens = 1], got 2"),
        ([1], Sampling(1, stop_token_ids=(1000,)), "stop_token_ids must be in [0, 1000)"),
        ([1], Sampling(1, seed=2**63), "seed must fit in 64 bits"),
        ([1] * 60, Sampling(69), "must be at most 128 tokens, got 60 + 69"),
        ([1] * 60, Sampling(30), "must fit the KV cache of 80 tokens, got 60 + 30"),
    ],
)
def test_what_cannot_run_is_refused(prompt: list[int], sampling: Sampling, message: str) -> None:
    """In a sentence that names the field, the rule and the value."""
    under_test = EngineUnderTest(a_capacity(num_blocks=20, block_size=4))

    under_test.submit(Submit("a", prompt, sampling))
    (output,) = under_test.step()

    assert output.finish == "error"
    assert message in str(output.error)
    assert under_test.engine.is_idle


def test_the_longest_request_that_fits_runs() -> None:
    """The bound is sharp: every block is used."""
    under_test = EngineUnderTest(a_capacity(num_blocks=20, block_size=4))

    under_test.submit(a_submit("a", [1] * 60, max_tokens=21))
    under_test.run_to_end()

    assert len(under_test.tokens("a")) == 21


def test_a_request_that_breaks_a_step_fails_alone() -> None:
    """The others are run again, and get what they would have got."""
    under_test = EngineUnderTest()
    submits = [a_submit(id, [number, 1, 2]) for number, id in enumerate(("good", "bad", "too"))]

    def break_bad(batch: Batch) -> None:
        if any(piece.request.id == "bad" and piece.is_decode for piece in batch.chunks):
            raise RequestError("bad", "not a number")

    under_test.runner.before_run = break_bad
    under_test.submit(*submits)
    under_test.run_to_end()

    assert under_test.outputs["bad"][-1].error == "not a number"
    for submit in (submits[0], submits[2]):
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)
    assert under_test.engine.load().kv_used_blocks == 0


def test_a_defect_in_a_step_is_not_swallowed() -> None:
    """The process ends, and the sidecar answers 503: no guess about what still holds."""
    under_test = EngineUnderTest()

    def break_all(_batch: Batch) -> None:
        raise ZeroDivisionError

    under_test.runner.before_run = break_all
    under_test.submit(a_submit())

    with pytest.raises(ZeroDivisionError):
        under_test.step()


def test_the_load_tells_who_waits_and_how_long() -> None:
    """What the tuner calls backlog."""
    under_test = EngineUnderTest(limits=Limits(1, 64))
    under_test.submit(a_submit("running", max_tokens=20))
    under_test.step()
    under_test.submit(
        Submit("a", [1] * 7, Sampling(4), lane="batch", arrived_at=under_test.clock.now),
        Submit("b", [1] * 5, Sampling(4), arrived_at=under_test.clock.now + 1.0),
    )
    under_test.clock.advance(3.0)
    under_test.step()

    load = under_test.engine.load()

    assert (load.running, load.waiting, load.waiting_tokens) == (1, 2, 12)
    assert load.oldest_waiting_s == pytest.approx(3.0)
    assert load.waiting_by_lane == {"interactive": 1, "batch": 1}
    assert load.running_by_lane == {"interactive": 1, "batch": 0}


def test_who_was_passed_by_others_waits_the_longest_all_the_same() -> None:
    """The next one of a lane need not be the one that came first."""
    under_test = EngineUnderTest(limits=Limits(1, 64))
    under_test.submit(a_submit("running", max_tokens=20))
    under_test.step()
    now = under_test.clock.now
    under_test.submit(
        Submit("long", [1] * 7, Sampling(4), arrived_at=now, turn_at=now + 9.0),
        Submit("short", [1], Sampling(4), arrived_at=now + 1.0, turn_at=now + 2.0),
    )
    under_test.clock.advance(3.0)

    assert under_test.engine.load().oldest_waiting_s == pytest.approx(3.0)


def test_the_load_tells_how_far_running_requests_are() -> None:
    """Outputs that have not ended are the long ones: leaving them out biases lengths."""
    under_test = EngineUnderTest(limits=Limits(8, 64))
    under_test.submit(a_submit("old", max_tokens=20))
    for _ in range(3):
        under_test.step()
    under_test.submit(a_submit("new", max_tokens=20))
    under_test.step()

    assert sorted(under_test.engine.load().running_output_tokens) == [1, 4]


def test_the_load_samples_many_running_requests_evenly() -> None:
    """They are in order of age: the first 256 would be the oldest."""
    assert _lengths(list(range(600))) == list(range(0, 600, 3))
    assert _lengths([5, 6]) == [5, 6]


def test_the_first_output_tells_when_it_was_scheduled() -> None:
    """Queue time is from arrival to the first chunk."""
    under_test = EngineUnderTest(limits=Limits(8, 4))
    under_test.submit(a_submit("a", list(range(10)), max_tokens=2))
    scheduled_at = under_test.clock.now
    for _ in range(4):
        under_test.step()
        under_test.clock.advance(1.0)

    first, second = under_test.outputs["a"]

    assert first.scheduled_at == scheduled_at
    assert second.scheduled_at is None


def test_the_room_in_the_last_blocks_is_told_as_it_is_held() -> None:
    """Blocks are whole: of 16 tokens each, three and seventeen tokens leave 13 and 15 unfilled."""
    under_test = EngineUnderTest(a_capacity(block_size=16))
    under_test.submit(a_submit("short", [1, 2, 3]), a_submit("long", list(range(17))))
    under_test.step()

    known = [len(request.token_ids) for request in under_test.engine.requests.running()]
    assert under_test.engine.load().kv_unfilled_tokens == sum(-n % 16 for n in known)

    under_test.run_to_end()
    assert under_test.engine.load().kv_unfilled_tokens == 0
