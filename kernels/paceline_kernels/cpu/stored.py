"""Compiled libraries in a folder: `KEY-DIGEST.so`, loaded only where nobody else could write.

The rule: the folder and the file are no symbolic links, belong to the user of this process or to
root, and nobody else may write to either; and the file's content has the digest that its name says.
What does not keep to it is not loaded. All of it is checked on the open file, and that very file is
loaded, so nothing can be exchanged in between, whoever may write to the folders above.

    LibraryError
    └── UntrustedError   somebody else could have written it, or it is damaged
"""

import ctypes
import fcntl
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import CDLL
from pathlib import Path
from typing import Final

_KEPT: Final = 16
"""Libraries in a cache; the oldest go first."""
_DIGITS: Final = 32
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class LibraryError(Exception):
    """A library cannot be loaded: the text says why."""


class UntrustedError(LibraryError):
    """Somebody else could have written it, or it is damaged: the text says which."""


def load_stored(folder: Path, key: str) -> CDLL | None:
    """Load the library of this key; None where there is none.

    Raises LibraryError.
    """
    with _trusted(folder) as opened:
        names = sorted(name for name in _names(opened) if _is_of(key, name))
        return _load(opened, names[0]) if names else None


def store(folder: Path, key: str, library: Path) -> None:
    """Put a copy of a library into the folder, under its key, all at once.

    Raises LibraryError, and OSError where the folder cannot be written to.
    """
    content = library.read_bytes()
    name = f"{key}-{_digest(content)}.so"
    with _trusted(folder) as opened:
        handle, fresh = tempfile.mkstemp(dir=f"/proc/self/fd/{opened}")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                os.fchmod(handle, 0o644)
            os.rename(Path(fresh).name, name, src_dir_fd=opened, dst_dir_fd=opened)
        except BaseException:
            Path(fresh).unlink(missing_ok=True)
            raise
        _drop(opened, key, but=name)


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Make the folder this user's own, and keep other processes from compiling into it meanwhile.

    A folder of this user's that others could write to is closed to them and emptied.
    Raises OSError where it cannot be made, UntrustedError where it is somebody else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = _open_folder(folder)
    try:
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and found.st_mode & _WRITABLE_BY_OTHERS:
            os.fchmod(opened, 0o700)
            _remove(opened, _names(opened))
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def load_made(library: Path) -> CDLL:
    """Load what this process has just made in a folder of its own.

    Raises LibraryError.
    """
    with _trusted(library.parent) as opened:
        return _load_file(_open_file(opened, library.name), library.name)


@contextmanager
def _trusted(folder: Path) -> Iterator[int]:
    opened = _open_folder(folder)
    try:
        _require_ours(os.fstat(opened), folder.name)
        yield opened
    finally:
        os.close(opened)


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise UntrustedError(f"{folder} is a file or a symbolic link") from error


def _open_file(folder: int, name: str) -> int:
    try:
        # O_NONBLOCK: opening a pipe of that name would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(name, flags, dir_fd=folder)
    except OSError as error:
        raise UntrustedError(f"{name} is a symbolic link, or cannot be opened: {error}") from error
    try:
        found = os.fstat(opened)
        _require_ours(found, name)
    except UntrustedError:
        os.close(opened)
        raise
    return opened


def _require_ours(found: os.stat_result, name: str) -> None:
    owner, user, mode = found.st_uid, os.geteuid(), found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UntrustedError(f"{name} is no plain file")
    if owner not in {0, user}:
        raise UntrustedError(f"{name} belongs to user {owner}, not to {user} or root")
    if mode & _WRITABLE_BY_OTHERS:
        raise UntrustedError(f"{name} can be written to by others (mode {stat.S_IMODE(mode):o})")


def _load(folder: int, name: str) -> CDLL:
    opened = _open_file(folder, name)
    with os.fdopen(os.dup(opened), "rb") as file:
        digest = _digest(file.read())
    if not name.endswith(f"-{digest}.so"):
        os.close(opened)
        raise UntrustedError(f"{name} is damaged: its digest is {digest}")
    return _load_file(opened, name)


def _load_file(opened: int, name: str) -> CDLL:
    """Load an open file, which stays open: the linker knows libraries by their paths."""
    try:
        return ctypes.CDLL(f"/proc/self/fd/{opened}")
    except OSError as error:
        os.close(opened)
        raise LibraryError(f"{name} cannot be loaded: {error}") from error


def _is_of(key: str, name: str) -> bool:
    return name.startswith(f"{key}-") and len(name) == len(f"{key}-.so") + _DIGITS


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.endswith(".so")]


def _drop(folder: int, key: str, *, but: str) -> None:
    """Remove others of the same key, and all but the newest."""
    names = [name for name in _names(folder) if name != but]
    stale = [name for name in names if _is_of(key, name)]
    rest = [name for name in names if name not in stale]
    rest.sort(key=lambda name: os.stat(name, dir_fd=folder).st_mtime_ns, reverse=True)
    _remove(folder, [*stale, *rest[_KEPT - 1 :]])


def _remove(folder: int, names: list[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
