"""What the overload benchmark counts a stream as, and what it writes of a run."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from chaos.streams import Answer
from overload.asking import Asked, Outcome, ask
from overload.flood import draw_flood, flood_of
from overload.report import Run, record, table
from overload.scenes import Sample, Scene, steady_rps

EXPECTED = Answer(" Paris.", "length")
WHOLE = Asked(0, 10.0, 11.0, 200, " Paris.", "length", token_ats=(10.5, 10.6))


@pytest.mark.parametrize(
    ("asked", "outcome"),
    [
        (WHOLE, Outcome.WHOLE),
        (replace(WHOLE, text=" Paris. Paris."), Outcome.MIXED),
        (replace(WHOLE, text=" Pari"), Outcome.MIXED),
        (replace(WHOLE, text=" Rome", error="cut"), Outcome.MIXED),
        (replace(WHOLE, text=" Pa", error="cut"), Outcome.CUT),
        (replace(WHOLE, status=429, text="", error="{}"), Outcome.REFUSED),
        (replace(WHOLE, status=503, text="", error="{}"), Outcome.UNAVAILABLE),
        (replace(WHOLE, status=0, text="", error="refused"), Outcome.UNAVAILABLE),
        (replace(WHOLE, status=500, text="", error="{}"), Outcome.FAILED),
    ],
    ids=["whole", "doubled", "lost", "mixed", "cut", "429", "503", "no answer", "500"],
)
def test_a_stream_counts_as_one_thing(asked: Asked, outcome: Outcome) -> None:
    """A stream that says it is whole and lacks a token is as wrong as one with another's."""
    assert asked.outcome(EXPECTED) is outcome


def test_only_what_is_whole_and_in_time_is_good() -> None:
    """And only what ended while the load went on."""
    late = replace(WHOLE, token_ats=(15.1,))
    after = replace(WHOLE, ended_at=21.0)
    scene = Scene("flood for 1 min", 0.0, 20.0, [WHOLE, late, after], samples=[Sample(0, 900, 90)])
    run = Run("2 cores", [EXPECTED], [scene], 0.1, scene)

    assert run.good_rps(scene) == 1 / 20
    assert "| flood for 1 min | 20 | 3 | 0 |" in table(run)
    assert "50% of the capacity" in table(run)
    assert record(run)["scenes"][0]["outcomes"]["whole"] == 3


@pytest.mark.parametrize(
    ("seconds", "every_s", "place"),
    [(20.0, 1, 11), (6000.0, 10, 1)],
    ids=["each second", "at most 600 points"],
)
def test_the_flood_is_kept_second_by_second_and_drawn(
    seconds: float, every_s: int, place: int, tmp_path: Path
) -> None:
    """What ended after it is not of it."""
    no = replace(WHOLE, status=429, text="", error="{}", token_ats=())
    after = replace(WHOLE, ended_at=seconds + 1)
    samples = [Sample(float(at), 900, 90) for at in range(int(seconds))]
    scene = Scene("flood", 0.0, seconds, [WHOLE, no, after], samples=samples)

    flood = flood_of(Run("2 cores, load 0", [EXPECTED], [scene], 0.1, scene))
    draw_flood(flood, tmp_path / "flood.png")

    assert flood.every_s == every_s
    assert len(flood.good) == len(flood.engine_mib) == seconds / every_s
    assert [at for at, count in enumerate(flood.good) if count] == [place]
    assert [at for at, count in enumerate(flood.refused) if count] == [place]
    assert flood.machine == "2 cores"
    assert (tmp_path / "flood.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        (b'data: {"choices": [{"text": " Paris.", "finish_reason": "length"}]}\n\n', Outcome.WHOLE),
        (b'data: {"choices": [{"text": " Pa", "finish_reason": null}]}\n\n', Outcome.MIXED),
        (b'data: {"error": {"message": "lost"}}\n\n', Outcome.CUT),
    ],
    ids=["whole", "lost", "error event"],
)
def test_a_stream_is_read_from_its_chunks(sent: bytes, outcome: Outcome) -> None:
    """Wherever the chunks are cut."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        body = sent + b"data: [DONE]\n\n"
        for piece in (body[:20], body[20:]):
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        writer.close()

    async def ask_it() -> Asked:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            return await ask(server.sockets[0].getsockname()[1], 0)

    assert asyncio.run(ask_it()).outcome(EXPECTED) is outcome


def test_the_capacity_is_counted_from_the_first_answer() -> None:
    """Until then rows fill up; and what ends after the load is not of it."""
    ends = (5.0, 5.0, 10.0, 15.0, 21.0)
    asked = [replace(WHOLE, ended_at=end) for end in ends]

    assert steady_rps(Scene("full", 0.0, 20.0, asked)) == 2 / 15
