"""Files and batches in one folder, apart between callers; several processes may share it.

OWNER/files/ID.data, ID.json      a file is there once its `.json` is
OWNER/batches/ID/record.json      and started.json, cancelled.json, ended.json
OWNER/batches/ID/lock             held by the process that runs it
"""

import fcntl
import math
import os
import re
import secrets
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Literal, TypeVar

import msgspec

from paceline_sidecar.batches.objects import (
    Batch,
    BatchEndpoint,
    Cancelled,
    Counts,
    DeletedFile,
    Ended,
    FileObject,
    InputLine,
    OutputLine,
    Record,
    Started,
    shown,
)
from paceline_sidecar.errors import InvalidRequest, ObjectUnknown
from paceline_sidecar.keys import Principal

MAX_FILES = 1000
MAX_UNFINISHED = 16
"""Of one caller."""
MAX_BATCHES = 1000
MAX_STORED_BYTES = 2 * 1024**3
"""What the files of one caller may hold together."""
WINDOW_S = 24 * 3600

_FILE_ID = re.compile(r"file-[0-9a-f]{32}")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
_ANYONE = "anyone"
_COPY_BYTES = 1024 * 1024

Kind = TypeVar("Kind", bound=msgspec.Struct)


def persistent_secret(folder: Path) -> bytes:
    """Return the folder's own secret, made once: callers have the same id after a restart."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "secret"
    with suppress(FileExistsError):
        staged = folder / f"secret.{uuid.uuid4().hex}"
        staged.touch(mode=0o600)
        staged.write_bytes(secrets.token_bytes(32))
        try:
            os.link(staged, path)  # the first one wins, and nobody reads half of it
        finally:
            staged.unlink()
    return path.read_bytes()


class NoRoom(InvalidRequest):
    """The folder may hold no more."""

    def __init__(self) -> None:
        super().__init__(
            "There is no room for more: delete files first.", param="file", code="no_space"
        )


class Room:
    """What a folder that begins empty may still hold, for all callers together."""

    def __init__(self, left_bytes: float) -> None:
        self._left_bytes = left_bytes
        self._lock = threading.Lock()

    def take(self, num_bytes: int) -> None:
        """Take some of it, or give it back where it is negative; raises `NoRoom`."""
        with self._lock:
            if num_bytes > self._left_bytes:
                raise NoRoom
            self._left_bytes -= num_bytes


class BatchStore:
    """Every method reads or writes the disk: call it from a thread."""

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: float = math.inf,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._root = root
        self._room = Room(max_bytes)
        self._clock = clock

    def staging(self) -> Path:
        """Return the path of a file that nobody sees yet."""
        folder = self._root / "staging"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / uuid.uuid4().hex

    def add_file(self, who: Principal, source: Path, filename: str) -> FileObject:
        """Move `source` among the files; raises `InvalidRequest` above the bounds."""
        kept = self.files(who)
        size = source.stat().st_size
        if len(kept) >= MAX_FILES or sum(file.bytes for file in kept) + size > MAX_STORED_BYTES:
            message = (
                f"There may be {MAX_FILES} files of {MAX_STORED_BYTES} bytes together:"
                " delete some first."
            )
            raise InvalidRequest(message, param="file", code="too_many_files")
        self._room.take(size)
        file_id = f"file-{uuid.uuid4().hex}"
        with source.open("rb") as data:
            os.fsync(data.fileno())
        source.replace(self.data_path(who, file_id))
        return self._show_file(who, file_id, filename, "batch")

    def publish(self, who: Principal, file_id: str, filename: str) -> None:
        """Show what was written under this id as a file, unless nothing was."""
        path = self.data_path(who, file_id)
        if path.exists() and path.stat().st_size:
            self._show_file(who, file_id, filename, "batch_output")

    def files(self, who: Principal) -> list[FileObject]:
        """List the files of a caller, the oldest first."""
        folder = self._files(who)
        found = [_read(path, FileObject) for path in folder.glob("file-*.json")]
        return sorted((f for f in found if f), key=lambda file: (file.created_at, file.id))

    def file(self, who: Principal, file_id: str) -> FileObject:
        """Return one file; raises `ObjectUnknown`."""
        found = None
        if _FILE_ID.fullmatch(file_id):
            found = _read(self._files(who) / f"{file_id}.json", FileObject)
        if found is None:
            raise ObjectUnknown("file", file_id)
        return found

    def delete_file(self, who: Principal, file_id: str) -> DeletedFile:
        """Forget a file; raises `ObjectUnknown`."""
        size = self.file(who, file_id).bytes
        # Without its description first: half a deletion is a deletion.
        (self._files(who) / f"{file_id}.json").unlink(missing_ok=True)
        self.data_path(who, file_id).unlink(missing_ok=True)
        self._room.take(-size)
        return DeletedFile(file_id)

    def data_path(self, who: Principal, file_id: str) -> Path:
        """Return where a file's content is."""
        return self._files(who) / f"{file_id}.data"

    def add_batch(
        self,
        who: Principal,
        *,
        endpoint: BatchEndpoint,
        input_file_id: str,
        metadata: dict[str, str] | None,
    ) -> Batch:
        """Note a new batch; raises `ObjectUnknown`, `InvalidRequest` above the bounds."""
        if self.file(who, input_file_id).purpose != "batch":
            message = "input_file_id: its purpose must be batch"
            raise InvalidRequest(message, param="input_file_id")
        kept = self.batches(who)
        unfinished = [b for b in kept if b.status in {"validating", "in_progress", "cancelling"}]
        if len(unfinished) >= MAX_UNFINISHED:
            message = f"{MAX_UNFINISHED} batches are unfinished: wait for one, or cancel it."
            raise InvalidRequest(message, code="too_many_batches")
        for old in [b for b in kept if b not in unfinished][: len(kept) + 1 - MAX_BATCHES]:
            shutil.rmtree(self._batch(who, old.id), ignore_errors=True)
        now = int(self._clock())
        record = Record(
            id=f"batch_{uuid.uuid4().hex}",
            endpoint=endpoint,
            input_file_id=input_file_id,
            output_file_id=f"file-{uuid.uuid4().hex}",
            error_file_id=f"file-{uuid.uuid4().hex}",
            created_at=now,
            expires_at=now + WINDOW_S,
            metadata=metadata,
            caller_name=who.name,
            caller_id=who.id,
        )
        self.note(who, record.id, record)
        return self.batch(who, record.id)

    def batches(self, who: Principal) -> list[Batch]:
        """List the batches of a caller, the newest first."""
        paths = (self._owner(who) / "batches").glob("batch_*/record.json")
        found = []
        for path in paths:
            with suppress(ObjectUnknown):
                found.append(self.batch(who, path.parent.name))
        return sorted(found, key=lambda batch: (batch.created_at, batch.id), reverse=True)

    def batch(self, who: Principal, batch_id: str) -> Batch:
        """Return one batch; raises `ObjectUnknown`."""
        record = self.record(who, batch_id)
        started = self.read(who, batch_id, Started)
        ended = self.read(who, batch_id, Ended)
        counts = Counts()
        if started is not None and ended is None:
            completed = self.num_lines(who, record.output_file_id)
            failed = self.num_lines(who, record.error_file_id)
            counts = Counts(started.total, completed, failed)
        return shown(record, started, self.read(who, batch_id, Cancelled), ended, counts)

    def cancel(self, who: Principal, batch_id: str) -> Batch:
        """Note that a batch shall end, unless it has; raises `ObjectUnknown`."""
        self.record(who, batch_id)
        if self.read(who, batch_id, Ended) is None and not self.is_cancelled(who, batch_id):
            self.note(who, batch_id, Cancelled(int(self._clock())))
        return self.batch(who, batch_id)

    def is_cancelled(self, who: Principal, batch_id: str) -> bool:
        """Tell whether somebody asked for its end."""
        return self._path(who, batch_id, Cancelled).exists()

    def record(self, who: Principal, batch_id: str) -> Record:
        """Return what is known of a batch from the beginning; raises `ObjectUnknown`."""
        found = None
        if _BATCH_ID.fullmatch(batch_id):
            found = self.read(who, batch_id, Record)
        if found is None:
            raise ObjectUnknown("batch", batch_id)
        return found

    def unfinished(self) -> list[Record]:
        """List the batches of all callers that have not ended, the oldest first."""
        found = []
        for path in self._root.glob("*/batches/batch_*/record.json"):
            record = _read(path, Record)
            if record is not None and not (path.parent / "ended.json").exists():
                found.append(record)
        return sorted(found, key=lambda record: (record.created_at, record.id))

    def claim(self, who: Principal, batch_id: str) -> BinaryIO | None:
        """Take the right to run a batch, until the file is closed; None where another has it."""
        lock = (self._batch(who, batch_id) / "lock").open("wb")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return None
        return lock

    def read(self, who: Principal, batch_id: str, kind: type[Kind]) -> Kind | None:
        """Return what was noted; None where it was not."""
        return _read(self._path(who, batch_id, kind), kind)

    def note(self, who: Principal, batch_id: str, what: msgspec.Struct) -> None:
        """Write it, whole or not at all."""
        path = self._path(who, batch_id, type(what))
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, what)

    def finished_ids(self, who: Principal, record: Record) -> set[str]:
        """Return the lines that were answered, and cut off what a crash left half written."""
        found: set[str] = set()
        for file_id in (record.output_file_id, record.error_file_id):
            path = self.data_path(who, file_id)
            if path.exists():
                found |= _whole_lines(path)
        return found

    def num_lines(self, who: Principal, file_id: str) -> int:
        """Count the lines of a file; 0 where there is none."""
        path = self.data_path(who, file_id)
        if not path.exists():
            return 0
        with path.open("rb") as data:
            return sum(chunk.count(b"\n") for chunk in iter(lambda: data.read(_COPY_BYTES), b""))

    def append(self, who: Principal, file_id: str, line: OutputLine) -> None:
        """Add a line; it is on the disk when this returns. Raises `NoRoom`."""
        written = msgspec.json.encode(line) + b"\n"
        self._room.take(len(written))
        with self.data_path(who, file_id).open("ab") as data:
            data.write(written)
            data.flush()
            os.fsync(data.fileno())

    def _show_file(
        self,
        who: Principal,
        file_id: str,
        filename: str,
        purpose: Literal["batch", "batch_output"],
    ) -> FileObject:
        size = self.data_path(who, file_id).stat().st_size
        made = FileObject(file_id, size, int(self._clock()), filename, purpose)
        _write(self._files(who) / f"{file_id}.json", made)
        return made

    def _owner(self, who: Principal) -> Path:
        return self._root / (who.id or _ANYONE)

    def _files(self, who: Principal) -> Path:
        folder = self._owner(who) / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _batch(self, who: Principal, batch_id: str) -> Path:
        return self._owner(who) / "batches" / batch_id

    def _path(self, who: Principal, batch_id: str, kind: type[msgspec.Struct]) -> Path:
        return self._batch(who, batch_id) / f"{kind.__name__.lower()}.json"


def input_lines(path: Path, *, max_bytes: int) -> Iterator[bytes]:
    """Yield the lines that hold something; one that is too long comes cut, and cannot be read."""
    with path.open("rb") as data:
        while line := data.readline(max_bytes + 1):
            if line.strip():
                yield line


def read_line(line: bytes) -> InputLine:
    """Read a line of an input; raises `ValueError`."""
    try:
        return msgspec.json.decode(line, type=InputLine)
    except RecursionError as error:
        msg = "JSON is nested too deeply"
        raise ValueError(msg) from error


def _read(path: Path, kind: type[Kind]) -> Kind | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def _write(path: Path, what: msgspec.Struct) -> None:
    staged = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    with staged.open("wb") as data:
        data.write(msgspec.json.encode(what))
        data.flush()
        os.fsync(data.fileno())
    staged.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _whole_lines(path: Path) -> set[str]:
    found: set[str] = set()
    with path.open("r+b") as data:
        whole = 0
        for line in data:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            found.add(msgspec.json.decode(line, type=OutputLine).custom_id)
        data.truncate(whole)
    return found
