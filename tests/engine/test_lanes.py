"""An interactive arrival takes row and blocks from batch requests that hold more than a share."""

from paceline_engine.scheduling.request_table import MAX_PREEMPTIONS
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit, answer
from paceline_wire import SetLimits, Submit
from paceline_wire.limits import Limits


def a_prompt(length: int, first: int = 0) -> list[int]:
    return [(first + position) % 1000 for position in range(length)]


def a_batch(number: int, *, length: int = 3, max_tokens: int = 40) -> Submit:
    prompt = a_prompt(length, 20 * number)
    return a_submit(f"batch {number}", prompt, max_tokens=max_tokens, lane="batch")


def running(under_test: EngineUnderTest) -> set[str]:
    return {request.id for request in under_test.engine.requests.running()}


def test_an_interactive_arrival_takes_a_row_in_its_first_step() -> None:
    """All rows are the batch lane's: the one that came last gives way, and nobody else."""
    under_test = EngineUnderTest(limits=Limits(4, 64))
    under_test.submit(*[a_batch(number) for number in range(4)])
    under_test.step()

    under_test.submit(a_submit("interactive", a_prompt(5, 500), max_tokens=2))
    given = under_test.step()

    assert running(under_test) == {"batch 0", "batch 1", "batch 2", "interactive"}
    assert "interactive" in {output.id for output in given}
    assert under_test.engine.load().displaced == 1


def test_who_gave_way_comes_back_and_answers_as_if_nothing_had_been() -> None:
    """Its tokens so far are kept, none is told twice."""
    under_test = EngineUnderTest(limits=Limits(2, 64), prefix_caching=False)
    submits = [a_batch(number, max_tokens=12) for number in range(2)]
    under_test.submit(*submits)
    for number in range(3):
        under_test.run_until(lambda: len(under_test.engine.requests.decoding) == 2)
        submits.append(a_submit(f"interactive {number}", a_prompt(4, 300 + number), max_tokens=2))
        under_test.submit(submits[-1])
        under_test.step()
    under_test.run_to_end()

    assert under_test.engine.load().displaced == 3
    for submit in submits:
        assert under_test.tokens(submit.id) == answer(submit, under_test.info, 128)


def test_the_batch_lane_keeps_its_share_of_the_rows() -> None:
    """With a quarter of eight rows, two of its requests run on whoever else comes."""
    under_test = EngineUnderTest(limits=Limits(8, 64, None, 0.75, 0.25))
    under_test.submit(*[a_batch(number) for number in range(8)])
    under_test.step()

    under_test.submit(
        *[a_submit(f"{n}", a_prompt(3, 300 + 9 * n), max_tokens=30) for n in range(12)]
    )
    under_test.step()

    assert running(under_test) == {"batch 0", "batch 1", *map(str, range(6))}


def test_a_batch_request_gives_way_a_few_times_and_no_more() -> None:
    """Under an endless stream of interactive requests it must still get done."""
    under_test = EngineUnderTest(limits=Limits(1, 64, None, 1.0, 0.0))
    under_test.submit(a_batch(0, max_tokens=20))
    under_test.step()

    number = 0
    while under_test.finish("batch 0") is None:
        under_test.submit(a_submit(f"{number}", a_prompt(3, 300 + number), max_tokens=2))
        under_test.step()
        number += 1
        assert number < 2000

    assert under_test.engine.load().displaced == MAX_PREEMPTIONS


def test_batch_requests_never_displace() -> None:
    """Nor does an interactive request take a row from another of its lane."""
    under_test = EngineUnderTest(limits=Limits(2, 64))
    under_test.submit(*[a_submit(f"{n}", a_prompt(3, 20 * n), max_tokens=9) for n in range(2)])
    under_test.step()

    under_test.submit(a_batch(0), a_submit("late", a_prompt(3, 700)))
    under_test.step()

    assert running(under_test) == {"0", "1"}
    assert under_test.engine.load().displaced == 0


def test_an_interactive_arrival_takes_blocks_as_well_as_rows() -> None:
    """Rows are free, but the batch lane holds the cache."""
    capacity = a_capacity(num_blocks=16, block_size=4, max_batch_size=8)
    under_test = EngineUnderTest(capacity, prefix_caching=False)
    under_test.submit(*[a_batch(number, length=14, max_tokens=8) for number in range(3)])
    under_test.step()
    assert len(running(under_test)) == 3

    under_test.submit(a_submit("interactive", a_prompt(24, 500), max_tokens=2))
    under_test.step()

    assert running(under_test) == {"batch 0", "batch 1", "interactive"}
    under_test.run_to_end()
    assert under_test.finish("batch 2") == "length"


def test_nobody_is_displaced_in_vain() -> None:
    """The prompt would not fit even without the batch request: it waits, and that one runs on."""
    capacity = a_capacity(num_blocks=16, block_size=4, max_batch_size=8, max_model_len=60)
    under_test = EngineUnderTest(capacity, prefix_caching=False)
    under_test.submit(a_submit("interactive", a_prompt(20), max_tokens=20), a_batch(0, length=8))
    under_test.step()

    under_test.submit(a_submit("large", a_prompt(50, 300), max_tokens=2))
    under_test.step()

    assert running(under_test) == {"interactive", "batch 0"}
    assert under_test.engine.load().displaced == 0


def test_a_lowered_batch_size_displaces_nobody() -> None:
    """While it drains nothing that runs is touched."""
    under_test = EngineUnderTest()
    under_test.submit(*[a_batch(number) for number in range(4)])
    under_test.step()

    under_test.engine.set_limits(SetLimits(call=1, epoch=1, max_batch_size=2))
    under_test.submit(a_submit("interactive", a_prompt(3, 500)))
    under_test.step()

    assert running(under_test) == {f"batch {n}" for n in range(4)}


def test_an_interactive_request_gets_in_where_a_step_has_one_token_left() -> None:
    """Four decodes and a budget of five: the prompt is computed in as many steps as it takes."""
    under_test = EngineUnderTest(limits=Limits(4, 5))
    under_test.submit(*[a_batch(number) for number in range(4)])
    under_test.run_until(lambda: len(under_test.engine.requests.decoding) == 4)

    under_test.submit(a_submit("interactive", a_prompt(3, 500), max_tokens=2))
    steps = under_test.run_until(lambda: "interactive" in under_test.outputs, max_steps=20)

    assert steps <= 4


def test_tokens_are_counted_by_lane() -> None:
    """What each lane was given, since start."""
    under_test = EngineUnderTest()
    under_test.submit(a_batch(0, length=7, max_tokens=5), a_submit("a", a_prompt(4, 90)))
    under_test.run_to_end()

    load = under_test.engine.load()

    assert load.prompt_tokens_by_lane == {"interactive": 4, "batch": 7}
    assert load.output_tokens_by_lane == {"interactive": 4, "batch": 5}
    assert (load.prompt_tokens, load.output_tokens) == (11, 9)
