"""Runs batches: reads their lines, asks for an answer to each, and writes it down.

A line that cannot be answered now waits and is asked again, until its batch expires: batches use
what people leave over. What is on the disk is not computed again.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import msgspec

from paceline_sidecar.batches.objects import (
    Answered,
    Ended,
    EndStatus,
    InputError,
    InputLine,
    LineError,
    OutputLine,
    Record,
    Started,
)
from paceline_sidecar.batches.store import BatchStore, NoRoom, input_lines, read_line
from paceline_sidecar.errors import EngineFault, Refused, SidecarError, TimedOut, Unavailable
from paceline_sidecar.keys import Principal
from paceline_sidecar.openai.error_response import body_of, status_of

_log = logging.getLogger(__name__)

MAX_LINES = 50_000
_MAX_ID = 256
_MAX_ERRORS = 100
_LOOK_AGAIN_S = 5.0
"""Batches of other processes that ended, and cancellations that another process noted."""
_COME_BACK_S = 1.0
_MAX_FAULTS = 3
"""An engine that gives a line up this often will not answer it."""
# Disks are slow, and their threads must not be those that parse requests.
_THREADS = ThreadPoolExecutor(max_workers=4, thread_name_prefix="batches")

Result = TypeVar("Result")

Answer = Callable[[str, bytes, Principal, str], Awaitable[bytes]]
"""Answers one line of this endpoint, whose, of this batch, with JSON; raises `SidecarError`."""


async def aside(work: Callable[..., Result], *arguments: Any) -> Result:
    """Do what reads or writes the disk in a thread."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, work, *arguments)


class BatchRunner:
    """Runs what is unfinished in the store, a bounded number of lines at once."""

    def __init__(
        self,
        store: BatchStore,
        answer: Answer,
        *,
        is_open: Callable[[], bool],
        concurrency: int,
        max_line_bytes: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._answer = answer
        self._is_open = is_open
        self.places = asyncio.Semaphore(concurrency)
        """One for each line that is held in memory."""
        self.places_of_one = max(1, concurrency // 2)
        """What one batch may hold: a caller that may not go on must not stop the others."""
        self._max_line_bytes = max_line_bytes
        self._clock = clock
        self._runs: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()

    def notice(self) -> None:
        """Look at the store at once: there is something new."""
        self._news.set()

    async def run(self) -> None:
        """Run until it is cancelled; one batch's trouble is not the others'."""
        try:
            while True:
                self._news.clear()
                for record in await aside(self._store.unfinished):
                    if record.id not in self._runs:
                        self._start(record)
                try:
                    async with asyncio.timeout(_LOOK_AGAIN_S):
                        await self._news.wait()
                except TimeoutError:
                    pass
        finally:
            for run in self._runs.values():
                run.cancel()
            await asyncio.gather(*self._runs.values(), return_exceptions=True)

    def _start(self, record: Record) -> None:
        run = asyncio.create_task(self._run(record))
        self._runs[record.id] = run
        run.add_done_callback(lambda _: self._runs.pop(record.id, None))

    async def _run(self, record: Record) -> None:
        who = Principal(record.caller_name, record.caller_id)
        lock = await aside(self._store.claim, who, record.id)
        if lock is None:
            return  # another process runs it
        with lock:
            run = _Run(self, self._store, record, who)
            try:
                await run.go()
            except NoRoom as error:
                await run.end("failed", [InputError("no_space", str(error), None)])
            except Exception:  # noqa: BLE001 - it is tried again; the others go on
                _log.exception("batch %s", record.id)

    @property
    def now(self) -> int:
        """Return the time in whole seconds."""
        return int(self._clock())

    def check(self, record: Record, who: Principal) -> tuple[int, list[InputError]]:
        """Count the lines of an input, and say what is wrong with them."""
        errors: list[InputError] = []
        seen: set[str] = set()
        number = 0
        try:
            for number, line in enumerate(self.lines(record, who), start=1):
                error = self._wrong(line, record, seen) if number <= MAX_LINES else "too_many_lines"
                if error is not None:
                    code, _, message = error.partition(": ")
                    errors.append(InputError(code, message or f"at most {MAX_LINES}", number))
                if len(errors) >= _MAX_ERRORS or number > MAX_LINES:
                    break
        except FileNotFoundError:
            errors.append(InputError("file_deleted", "The input file is gone.", None))
        if not number and not errors:
            errors.append(InputError("empty_file", "The input file has no line.", None))
        return number, errors

    def lines(self, record: Record, who: Principal) -> Iterator[bytes]:
        """Yield the lines of an input."""
        path = self._store.data_path(who, record.input_file_id)
        return input_lines(path, max_bytes=self._max_line_bytes)

    def _wrong(self, line: bytes, record: Record, seen: set[str]) -> str | None:
        if len(line) > self._max_line_bytes:
            return f"line_too_long: more than {self._max_line_bytes} bytes"
        try:
            read = read_line(line)
        except ValueError as error:
            return f"invalid_json_line: {error}"
        wrong = {
            f"invalid_custom_id: it has 1 to {_MAX_ID} characters": not (
                0 < len(read.custom_id) <= _MAX_ID
            ),
            "duplicate_custom_id: it was there before": read.custom_id in seen,
            "invalid_method: it is not POST": read.method != "POST",
            f"invalid_url: it is not the batch's, {record.endpoint}": read.url != record.endpoint,
        }
        seen.add(read.custom_id)
        return next((told for told, is_so in wrong.items() if is_so), None)

    async def output_of(self, line: InputLine, record: Record, who: Principal) -> OutputLine | None:
        """Ask until there is an answer; None where the batch expires before."""
        faults = 0
        while self.now < record.expires_at:
            wait_s = _COME_BACK_S
            if self._is_open():
                try:
                    body = await self._answer(record.endpoint, bytes(line.body), who, record.id)
                    return _output(line, 200, body)
                except Refused as error:
                    wait_s = error.retry_after_s
                except (Unavailable, TimedOut):
                    pass
                except SidecarError as error:
                    faults += 1
                    if not isinstance(error, EngineFault) or faults >= _MAX_FAULTS:
                        told = msgspec.json.encode(body_of(error))
                        return _output(line, status_of(error), told)
            await asyncio.sleep(wait_s)
        return None


class _Run:
    """One batch while it runs."""

    def __init__(
        self, runner: BatchRunner, store: BatchStore, record: Record, who: Principal
    ) -> None:
        self._runner = runner
        self._store = store
        self._record = record
        self._who = who
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writes: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        """Why a line could not be written; it may have ended long before anybody waits for it."""
        self._places = asyncio.Semaphore(runner.places_of_one)

    async def go(self) -> None:
        """Run to its end."""
        started = await aside(self._store.read, self._who, self._record.id, Started)
        if started is None:
            total, errors = await aside(self._runner.check, self._record, self._who)
            if errors:
                await self.end("failed", errors)
                return
            started = Started(total, self._runner.now)
            await aside(self._store.note, self._who, self._record.id, started)
        watch = asyncio.create_task(self._until_cancelled())
        work = asyncio.create_task(self._all_lines())
        try:
            await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await self._stop(work)
                await self.end("cancelled", [])
                return
            await work
        finally:
            watch.cancel()
            await self._stop(work)
        is_late = self._runner.now >= self._record.expires_at
        await self.end("expired" if is_late else "completed", [])

    async def _all_lines(self) -> None:
        finished = await aside(self._store.finished_ids, self._who, self._record)
        lines = self._runner.lines(self._record, self._who)
        while raw := await aside(_next, lines):
            if self._failure is not None:
                break
            line = read_line(raw)
            if line.custom_id in finished:
                continue
            await self._places.acquire()
            await self._runner.places.acquire()
            task = asyncio.create_task(self._line(line))
            self._tasks.add(task)
            task.add_done_callback(self._done)
        while self._tasks:
            await asyncio.gather(*self._tasks)
        if self._failure is not None:
            raise self._failure

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            self._failure = self._failure or task.exception()
        self._places.release()
        self._runner.places.release()

    async def _line(self, line: InputLine) -> None:
        output = await self._runner.output_of(line, self._record, self._who)
        if output is None:
            late = LineError("batch_expired", "The batch expired before this line was computed.")
            output = OutputLine(_line_id(), line.custom_id, None, late)
        is_good = output.response is not None and output.response.status_code == 200  # noqa: PLR2004
        file_id = self._record.output_file_id if is_good else self._record.error_file_id
        # Shielded: what is being written is written before the batch ends.
        write = asyncio.create_task(self._write(file_id, output))
        self._writes.add(write)
        write.add_done_callback(self._writes.discard)
        await asyncio.shield(write)

    async def _write(self, file_id: str, output: OutputLine) -> None:
        async with self._writing:
            await aside(self._store.append, self._who, file_id, output)

    async def _until_cancelled(self) -> None:
        who, batch_id = self._who, self._record.id
        # Another process may have noted it: only the disk tells.
        while not await aside(self._store.is_cancelled, who, batch_id):  # noqa: ASYNC110 - as above
            await asyncio.sleep(_COME_BACK_S)

    async def _stop(self, work: asyncio.Task[None]) -> None:
        work.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(work, *self._tasks, return_exceptions=True)
        await asyncio.gather(*self._writes, return_exceptions=True)

    async def end(self, status: EndStatus, errors: list[InputError]) -> None:
        """Show what was written, and note how it ended."""
        who, record = self._who, self._record
        names = {record.output_file_id: "output", record.error_file_id: "error"}
        for file_id, name in names.items():
            filename = f"{record.id}_{name}.jsonl"
            await aside(self._store.publish, who, file_id, filename)
        counts = [await aside(self._store.num_lines, who, file_id) for file_id in names]
        ended = Ended(status, self._runner.now, counts[0], counts[1], errors)
        await aside(self._store.note, who, record.id, ended)


def _output(line: InputLine, status: int, body: bytes) -> OutputLine:
    answered = Answered(status, uuid.uuid4().hex, msgspec.Raw(body))
    return OutputLine(_line_id(), line.custom_id, answered)


def _next(lines: Iterator[bytes]) -> bytes:
    """Return the next line; nothing after the last."""
    return next(lines, b"")


def _line_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
