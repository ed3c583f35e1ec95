"""Files and batches through the official client, across restarts and between callers."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types import Batch

from paceline_sidecar.batches.objects import FileObject
from paceline_sidecar.batches.runner import BatchRunner
from paceline_sidecar.batches.store import BatchStore, NoRoom
from paceline_sidecar.keys import ANYONE
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until

CHAT: Any = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4},
    "/v1/completions": {"model": "scripted", "prompt": "Hi", "max_tokens": 4},
    "/v1/embeddings": {"input": "Hi"},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "volume"


@pytest.fixture
def sidecar(engine: ScriptedEngine, start: Callable[..., Sidecar], folder: Path) -> Sidecar:
    """One with a volume for its batches."""
    del engine
    sidecar = start(batch_dir=folder)
    wait_until(sidecar.ready)
    return sidecar


def line(custom_id: str, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    body = {**BODIES[url], **fields}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def begin(client: OpenAI, lines: list[Any], url: Any = CHAT) -> Batch:
    content = "".join(json.dumps(each) + "\n" for each in lines).encode()
    file = client.files.create(file=("requests.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=url, completion_window="24h", metadata={"of": "tests"}
    )


def wait_for_end(client: OpenAI, batch: Batch) -> Batch:
    ends = {"completed", "failed", "cancelled", "expired"}
    wait_until(lambda: client.batches.retrieve(batch.id).status in ends)
    return client.batches.retrieve(batch.id)


def read(client: OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    lines = client.files.content(file_id).text.splitlines()
    found = {each["custom_id"]: each for each in map(json.loads, lines)}
    assert len(found) == len(lines)
    return found


@pytest.mark.parametrize("url", BODIES)
def test_a_batch_is_answered_line_by_line(
    sidecar: Sidecar, engine: ScriptedEngine, url: str
) -> None:
    """The way of the official client, unchanged, in the batch lane."""
    client = sidecar.openai
    begun = begin(client, [line(str(number), url) for number in range(5)], url)

    done = wait_for_end(client, begun)

    assert begun.status in {"validating", "in_progress", "completed"}
    assert done.status == "completed"
    assert done.metadata == {"of": "tests"}
    assert done.error_file_id is None
    assert done.request_counts is not None
    counts = done.request_counts
    assert (counts.total, counts.completed, counts.failed) == (5, 5, 0)
    answers = read(client, done.output_file_id)
    assert answers.keys() == {str(number) for number in range(5)}
    for each in answers.values():
        assert each["error"] is None
        assert each["response"]["status_code"] == 200
        assert each["response"]["body"]["model"] == "scripted"
    assert {submit.lane for submit in engine.submitted} == {"batch"}


def test_what_is_wrong_with_one_line_is_told_of_it_alone(sidecar: Sidecar) -> None:
    """In the error file; the others are answered."""
    client = sidecar.openai
    lines = [line("good"), line("bad", max_tokens=-1), line("streamed", stream=True)]

    done = wait_for_end(client, begin(client, lines))

    assert done.status == "completed"
    assert done.request_counts is not None
    assert (done.request_counts.completed, done.request_counts.failed) == (1, 2)
    assert read(client, done.output_file_id).keys() == {"good"}
    errors = read(client, done.error_file_id)
    assert errors["bad"]["response"]["status_code"] == 400
    assert errors["bad"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert errors["streamed"]["response"]["body"]["error"]["param"] == "stream"


@pytest.mark.parametrize(
    ("content", "code", "number"),
    [
        (b"", "empty_file", None),
        (b"\n \n", "empty_file", None),
        (b"{\n", "invalid_json_line", 1),
        (b"\xff\xfe\n", "invalid_json_line", 1),
        (b"[" * 100_000 + b"\n", "invalid_json_line", 1),
        (b'{"custom_id": "a", "method": "POST", "url": 5, "body": {}}\n', "invalid_json_line", 1),
        (b'{"custom_id": "", "method": "POST", "url": "%s", "body": {}}\n', "invalid_custom_id", 1),
        (b'{"custom_id": "a", "method": "GET", "url": "%s", "body": {}}\n', "invalid_method", 1),
        (b'{"custom_id": "a", "method": "POST", "url": "/x", "body": {}}\n', "invalid_url", 1),
        (
            b'{"custom_id": "a", "method": "POST", "url": "%s", "body": {}}\n' * 2,
            "duplicate_custom_id",
            2,
        ),
        (b'{"custom_id": "%s"}\n' % (b"x" * 1_100_000), "line_too_long", 1),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_an_input_that_cannot_be_read_fails_before_it_runs(
    sidecar: Sidecar, engine: ScriptedEngine, content: bytes, code: str, number: int | None
) -> None:
    """With the line's number."""
    client = sidecar.openai
    file = client.files.create(
        file=("in.jsonl", content.replace(b"%s", CHAT.encode())), purpose="batch"
    )
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")

    done = wait_for_end(client, batch)

    assert done.status == "failed"
    assert done.errors is not None
    first = (done.errors.data or [])[0]
    assert (first.code, first.line) == (code, number)
    assert not engine.submitted


class TestRestart:
    """A sidecar that comes back goes on where the other one was."""

    @pytest.fixture
    def script(self) -> Script:
        return Script(hold_after=1)

    def test_what_was_answered_is_not_computed_again(
        self,
        engine: ScriptedEngine,
        start: Callable[..., Sidecar],
        folder: Path,
        script: Script,
    ) -> None:
        """The first one goes after five lines, in the middle of the sixth."""
        first = start(batch_dir=folder, batch_concurrency=1, drain_s=0.1)
        wait_until(first.ready)
        # A line of one token ends, the others are held.
        short = [line(str(number), max_tokens=1) for number in range(5)]
        batch = begin(first.openai, short + [line(str(number)) for number in range(5, 20)])
        wait_until(lambda: (counts(first, batch), engine.running) == ((20, 5), 1))
        first.leave()
        first.join()
        answered = {each["custom_id"] for each in written(folder)}
        assert answered == {str(number) for number in range(5)}
        torn(folder)
        script.hold_after = None
        engine.submitted.clear()

        second = start(batch_dir=folder)
        wait_until(second.ready)
        done = wait_for_end(second.openai, batch)

        assert done.status == "completed"
        assert read(second.openai, done.output_file_id).keys() == set(map(str, range(20)))
        assert len(engine.submitted) == 20 - len(answered)

    def test_callers_keep_their_files(
        self, engine: ScriptedEngine, start: Callable[..., Sidecar], folder: Path, tmp_path: Path
    ) -> None:
        """With a name or without, and under a new key of the same name."""
        del engine
        keys = tmp_path / "keys"
        keys.write_text("team: old\nplain\n")
        first = start(batch_dir=folder, api_keys_file=keys)
        wait_until(first.ready)
        ids = {
            key: first.openai.with_options(api_key=key)
            .files.create(file=("a.jsonl", b"{}"), purpose="batch")
            .id
            for key in ("old", "plain")
        }
        first.leave()
        first.join()
        keys.write_text("team: new\nplain\n")

        second = start(batch_dir=folder, api_keys_file=keys)
        wait_until(second.ready)

        named = second.openai.with_options(api_key="new").files.list()
        plain = second.openai.with_options(api_key="plain").files.list()
        assert [file.id for file in named] == [ids["old"]]
        assert [file.id for file in plain] == [ids["plain"]]


def counts(sidecar: Sidecar, batch: Batch) -> tuple[int, int]:
    now = sidecar.openai.batches.retrieve(batch.id).request_counts
    assert now is not None
    return now.total, now.completed


def written(folder: Path) -> list[dict[str, Any]]:
    """The answers on the disk."""
    texts = [path.read_text() for path in folder.glob("*/files/*.data")]
    lines = [json.loads(each) for text in texts for each in text.splitlines()]
    return [each for each in lines if "response" in each]


def torn(folder: Path) -> None:
    """Leave half a line behind, as a crash does."""
    for path in folder.glob("*/files/*.data"):
        if '"response"' in path.read_text():
            with path.open("a") as data:
                data.write('{"id": "batch_req_1", "custom_id": "19", "resp')


def test_callers_see_their_own_alone(
    engine: ScriptedEngine, start: Callable[..., Sidecar], tmp_path: Path
) -> None:
    """Another's file is not there, by whatever path."""
    del engine
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    sidecar = start(api_keys_file=keys)
    wait_until(sidecar.ready)
    one, two = (sidecar.openai.with_options(api_key=key) for key in ("one", "two"))
    batch = begin(one, [line("a")])
    done = wait_for_end(one, batch)

    assert not list(two.files.list())
    assert not list(two.batches.list())
    assert done.output_file_id is not None
    asked: list[Callable[[], object]] = [
        lambda: two.files.retrieve(batch.input_file_id),
        lambda: two.files.content(str(done.output_file_id)),
        lambda: two.files.delete(batch.input_file_id),
        lambda: two.batches.retrieve(batch.id),
        lambda: two.batches.cancel(batch.id),
        lambda: two.batches.create(
            input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h"
        ),
    ]
    for ask in asked:
        with pytest.raises(openai.NotFoundError):
            ask()
    with pytest.raises(openai.AuthenticationError):
        sidecar.openai.files.list()


class TestHeld:
    """Batches whose lines do not end."""

    @pytest.fixture
    def script(self) -> Script:
        return Script(hold_after=1)

    def test_a_cancelled_batch_ends_and_frees_the_engine(
        self, sidecar: Sidecar, engine: ScriptedEngine
    ) -> None:
        """What it had computed is kept, what runs is aborted."""
        client = sidecar.openai
        batch = begin(client, [line(str(number)) for number in range(3)])
        wait_until(lambda: engine.running == 3)

        assert client.batches.cancel(batch.id).status in {"cancelling", "cancelled"}

        done = wait_for_end(client, batch)
        assert done.status == "cancelled"
        assert done.cancelled_at is not None
        wait_until(lambda: engine.running == 0)
        assert client.batches.cancel(batch.id).status == "cancelled"

    def test_the_lines_that_run_at_once_are_bounded(
        self, engine: ScriptedEngine, start: Callable[..., Sidecar], folder: Path, script: Script
    ) -> None:
        """One batch has half of the places at most."""
        sidecar = start(batch_dir=folder, batch_concurrency=4)
        wait_until(sidecar.ready)
        first = begin(sidecar.openai, [line(str(number)) for number in range(9)])
        wait_until(lambda: engine.running == 2)
        second = begin(sidecar.openai, [line(str(number)) for number in range(9)])
        wait_until(lambda: engine.running == 4)

        script.hold_after = None
        ends = [wait_for_end(sidecar.openai, batch).status for batch in (first, second)]

        assert ends == ["completed", "completed"]

    def test_a_line_that_is_refused_waits_and_is_asked_again(
        self, sidecar: Sidecar, engine: ScriptedEngine, script: Script
    ) -> None:
        """An engine that is gone is no answer to a line."""
        batch = begin(sidecar.openai, [line("a")])
        wait_until(lambda: engine.running == 1)
        engine.stop()
        wait_until(lambda: not sidecar.ready())
        script.hold_after = None

        with ScriptedEngine(engine.run_dir, script):
            done = wait_for_end(sidecar.openai, batch)

        assert done.status == "completed"
        assert read(sidecar.openai, done.output_file_id).keys() == {"a"}


def test_files_are_listed_fetched_and_deleted(sidecar: Sidecar) -> None:
    """As the official client does it."""
    client = sidecar.openai
    content = b'{"a": 1}\r\n--x--\r\n\x00\xff'
    made = [
        client.files.create(file=(f"ünï {number}.jsonl", content), purpose="batch")
        for number in range(3)
    ]

    assert made[0].bytes == len(content)
    assert made[0].filename == "ünï 0.jsonl"
    assert client.files.content(made[0].id).content == content
    assert client.files.retrieve(made[1].id) == made[1]
    assert {file.id for file in client.files.list(limit=2)} == {file.id for file in made}
    assert client.files.delete(made[2].id).deleted
    assert len(list(client.files.list())) == 2
    with pytest.raises(openai.NotFoundError):
        client.files.content(made[2].id)


def test_batches_are_listed_newest_first_page_by_page(sidecar: Sidecar) -> None:
    """`after` and `limit` are followed by the client itself."""
    client = sidecar.openai
    made = {begin(client, [line("a")]).id for _ in range(3)}

    listed = [batch.id for batch in client.batches.list(limit=2)]

    assert len(listed) == 3
    assert set(listed) == made


@pytest.mark.parametrize(
    ("headers", "content", "param"),
    [
        ({"content-type": "application/json"}, b"{}", "file"),
        ({"content-type": "multipart/form-data"}, b"x", "file"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"", "file"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b\r\n", "file"),
        ({"content-type": "multipart/form-data; boundary=b"}, b"--b--\r\n", "file"),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b"--b\r\nContent-Disposition: form-data; name=file\r\n\r\nx\r\n--b--",
            "purpose",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n' + b"x" * 2000 + b"\r\n--b--",
            "a",
        ),
        (
            {"content-type": "multipart/form-data; boundary=b"},
            b"--b\r\nA: b\r\n\r\n\r\n" * 20 + b"--b--",
            "file",
        ),
    ],
)
def test_a_form_that_cannot_be_read_is_a_400(
    sidecar: Sidecar, headers: dict[str, str], content: bytes, param: str
) -> None:
    """It names what is wrong."""
    answer = sidecar.public.post("/v1/files", headers=headers, content=content)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_an_upload_above_the_limit_is_413(
    engine: ScriptedEngine, start: Callable[..., Sidecar], folder: Path
) -> None:
    """And nothing of it is kept."""
    del engine
    sidecar = start(batch_dir=folder, batch_max_file_bytes=10_000)
    wait_until(sidecar.ready)

    with pytest.raises(openai.APIStatusError) as refused:
        sidecar.openai.files.create(file=("a", b"x" * 20_000), purpose="batch")

    assert refused.value.status_code == 413
    assert not list((folder / "staging").iterdir())


@pytest.mark.parametrize("bad", ["..", "%2e%2e%2fsecret", "file-1", "file-" + "0" * 32, "ü"])
def test_an_id_is_no_path(sidecar: Sidecar, bad: str) -> None:
    """Nothing else of the disk can be read."""
    for path in (f"/v1/files/{bad}", f"/v1/files/{bad}/content", f"/v1/batches/{bad}"):
        answer = sidecar.public.get(path)

        assert answer.status_code == 404
        assert answer.json()["error"]["message"]


def a_store(folder: Path, *, max_bytes: int) -> tuple[BatchStore, Path]:
    source = folder / "source"
    source.write_bytes(b"".join(json.dumps(line(str(n))).encode() + b"\n" for n in range(3)))
    return BatchStore(folder / "store", max_bytes=max_bytes), source


def test_a_folder_takes_no_more_than_it_may_hold(tmp_path: Path) -> None:
    """What is deleted makes room."""
    store = BatchStore(tmp_path / "store", max_bytes=150)

    def add() -> FileObject:
        source = tmp_path / "source"
        source.write_bytes(b"x" * 100)
        return store.add_file(ANYONE, source, "a")

    first = add()
    with pytest.raises(NoRoom):
        add()
    store.delete_file(ANYONE, first.id)

    assert add().bytes == 100


async def test_a_line_that_found_no_room_fails_its_batch_whatever_the_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines behind it were written: the batch is not completed for that."""
    store, source = a_store(tmp_path, max_bytes=10_000)
    file = store.add_file(ANYONE, source, "a")
    batch = store.add_batch(ANYONE, endpoint=CHAT, input_file_id=file.id, metadata=None)
    append, full = store.append, iter([True])

    def append_but_once(*args: Any) -> None:
        if next(full, False):
            raise NoRoom
        append(*args)

    async def answer(*_: object) -> bytes:
        return b'"an answer"'

    monkeypatch.setattr(store, "append", append_but_once)
    runner = BatchRunner(store, answer, is_open=lambda: True, concurrency=1, max_line_bytes=10_000)
    running = asyncio.create_task(runner.run())
    async with asyncio.timeout(60):
        while store.batch(ANYONE, batch.id).status not in {"failed", "completed"}:  # noqa: ASYNC110 - the disk tells
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    assert store.batch(ANYONE, batch.id).status == "failed"


async def test_a_batch_whose_answers_find_no_room_fails(tmp_path: Path) -> None:
    """What was written before is kept."""
    store, source = a_store(tmp_path, max_bytes=1500)
    file = store.add_file(ANYONE, source, "a")
    batch = store.add_batch(ANYONE, endpoint=CHAT, input_file_id=file.id, metadata=None)

    async def answer(*_: object) -> bytes:
        return b'"%s"' % (b"x" * 500)

    runner = BatchRunner(store, answer, is_open=lambda: True, concurrency=1, max_line_bytes=10_000)
    running = asyncio.create_task(runner.run())
    async with asyncio.timeout(60):
        while store.batch(ANYONE, batch.id).status != "failed":  # noqa: ASYNC110 - the disk tells
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

    done = store.batch(ANYONE, batch.id)
    assert done.errors is not None
    assert [error.code for error in done.errors.data] == ["no_space"]
    assert done.request_counts.completed == 1
    assert done.output_file_id is not None
    assert store.file(ANYONE, done.output_file_id).bytes > 500
