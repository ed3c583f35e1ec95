"""The generator sends on time whatever the server does, and records what came back."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.record import ClientRecord

Answer = Callable[[httpx.Request], httpx.Response]


def stream_of(*events: object, done: bool = True) -> httpx.Response:
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    return httpx.Response(200, text="".join([*lines, "data: [DONE]\n\n"] if done else lines))


def text(piece: str) -> dict[str, object]:
    return {"choices": [{"text": piece}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


async def one_record(answer: Answer, *, timeout_s: float = 60.0) -> ClientRecord:
    records: list[ClientRecord] = []
    transport = httpx.MockTransport(answer)
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        requests = [PlannedRequest(0.0, "hello", 2)]
        await drive_open(client, requests, Asking("m", timeout_s=timeout_s), records.append)
    (record,) = records
    return record


async def test_a_streamed_answer_is_recorded_piece_by_piece() -> None:
    """Each piece of text is one token's arrival; usage counts the tokens."""
    record = await one_record(lambda _: stream_of(text("a"), text("b"), text(""), USAGE))

    assert record.outcome == "ok"
    assert len(record.token_ats) == 2
    assert (record.prompt_tokens, record.output_tokens) == (7, 2)


@pytest.mark.parametrize(
    ("answer", "outcome", "error"),
    [
        (httpx.Response(429, text="queue full"), "refused", "429: queue full"),
        (httpx.Response(503, text="engine gone"), "failed", "503: engine gone"),
        (stream_of({"error": {"message": "engine died"}}), "failed", "engine died"),
        (stream_of(text("a"), done=False), "failed", "without [DONE]"),
    ],
    ids=["refused", "error", "error event", "cut short"],
)
async def test_what_went_wrong_is_an_outcome(
    answer: httpx.Response, outcome: str, error: str
) -> None:
    """A miss is counted with its cause; the run goes on."""
    record = await one_record(lambda _: answer)

    assert record.outcome == outcome
    assert error in record.error


async def test_a_lost_connection_is_a_failure() -> None:
    """The server may die while the load goes on."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    record = await one_record(refuse)

    assert record.outcome == "failed"


async def test_requests_are_sent_though_none_was_answered() -> None:
    """Open loop: a server that stalls sees the load pile up, as real clients would do."""
    everyone_is_here = asyncio.Event()
    sent = 0

    async def stall(_: httpx.Request) -> httpx.Response:
        nonlocal sent
        sent += 1
        if sent == 5:
            everyone_is_here.set()
        await everyone_is_here.wait()
        return stream_of(text("a"), USAGE)

    records: list[ClientRecord] = []
    requests = [PlannedRequest(index * 0.001, "hello", 1) for index in range(5)]
    async with httpx.AsyncClient(
        transport=httpx.MockTransport(stall), base_url="http://server"
    ) as client:
        await drive_open(client, requests, Asking("m"), records.append)

    assert [record.outcome for record in records] == ["ok"] * 5


async def test_an_answer_that_never_ends_is_a_timeout() -> None:
    """One stuck request must not hold the run."""

    class Stuck(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            yield b"data: " + json.dumps(text("a")).encode() + b"\n\n"
            await asyncio.Event().wait()

    record = await one_record(lambda _: httpx.Response(200, stream=Stuck()), timeout_s=2.0)

    assert record.outcome == "timeout"
    assert len(record.token_ats) == 1
