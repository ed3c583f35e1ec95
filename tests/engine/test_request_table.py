"""Where requests are, and who may move them."""

from typing import Any

import pytest

from paceline_engine.core.batch import Batch, Next, ScheduledChunk
from paceline_engine.core.request import Request
from paceline_engine.pacing import NoPacer
from paceline_engine.scheduling.request_table import RequestTable
from paceline_testing.engines import a_capacity
from paceline_wire import Sampling
from paceline_wire.limits import Limits


def a_request(id: str, prompt: list[int]) -> Request:
    return Request(id, list(prompt), len(prompt), Sampling(max_tokens=4))


def a_table(*requests: Request) -> RequestTable:
    """A table in which all of the requests have a row."""
    table = RequestTable(a_capacity(), NoPacer())
    for request in requests:
        table.add(request)
        assert table.blocks.allocate(request, spare=0)
        table.admit(request, now=0.0)
    return table


def state_of(table: RequestTable) -> list[Any]:
    """What a step moves."""
    requests = [(r.id, r.num_computed, r.num_in_flight, list(r.token_ids)) for r in table]
    return [sorted(table.prefilling), sorted(table.decoding), sorted(requests)]


def test_rows_are_read_only_outside_the_table() -> None:
    """The step loop and telemetry read who runs; whoever writes there fails at once."""
    request = a_request("a", [1, 2, 3])
    table = a_table(request)
    outside: list[Any] = [table.prefilling, table.decoding, table.num_running_of]

    for rows in outside:
        with pytest.raises(TypeError):
            rows["b"] = request
    assert list(table.prefilling) == ["a"]


def test_a_step_that_is_withdrawn_leaves_no_trace() -> None:
    """Two steps, one behind the other, are taken back newest first: all can run again."""
    prompt, decode = a_request("prompt", [1, 2, 3, 4, 5]), a_request("decode", [6, 7])
    table = a_table(prompt, decode)
    first = Batch((ScheduledChunk(decode, 0, 2, samples=True, is_decode=False),), num_decodes=0)
    table.launched(first)
    table.settle(first, [8], now=1.0)
    before = state_of(table)
    steps = [
        Batch(
            (
                ScheduledChunk(decode, 2, 1, samples=True, is_decode=True),
                ScheduledChunk(prompt, 0, 5, samples=True, is_decode=False),
            ),
            num_decodes=1,
        ),
        Batch(
            (
                ScheduledChunk(decode, 3, 1, samples=True, is_decode=True),
                ScheduledChunk(prompt, 5, 1, samples=True, is_decode=True),
            ),
            num_decodes=2,
        ),
    ]

    for step in steps:
        table.launched(step)
    assert sorted(table.decoding) == ["decode", "prompt"]
    for step in reversed(steps):
        table.withdraw(step)

    assert state_of(table) == before
    assert sorted(table.prefilling) == ["prompt"]


def test_a_decode_that_was_late_and_then_drafted_is_followed_once() -> None:
    """Followed twice, it would hurry all others after its end, too."""
    request = a_request("a", [1, 2, 3])
    table = a_table(request)
    paced = Limits(8, 64, pace_tpot_ms=50.0)
    prompt = ScheduledChunk(request, 0, 3, samples=True, is_decode=False)
    late = ScheduledChunk(request, 3, 1, samples=True, is_decode=True)
    drafted = ScheduledChunk(request, 3, 2, samples=True, is_decode=True, draft=(8,))
    last = ScheduledChunk(request, 5, 1, samples=True, is_decode=True)
    steps: list[tuple[Batch, list[Next]]] = [
        (Batch((prompt,), num_decodes=0), [7]),
        (Batch((late,), num_decodes=1), [None]),
        (Batch((drafted,), num_decodes=0, num_drafted=1), [(8, 9)]),
        (Batch((last,), num_decodes=1), [5]),
    ]

    for place, (batch, tokens) in enumerate(steps):
        table.pace.slack_ms(paced, now=0.0)
        table.launched(batch)
        table.settle(batch, tokens, now=float(place))

    assert request.finish == "length"
    table.pace.follow(a_request("b", [1]), first_at=5.0)
    assert table.pace.slack_ms(paced, now=9.0) == -4000.0
