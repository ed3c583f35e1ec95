"""Files in a folder that are read only where nobody else could have written them.

The rule: the folder and the file are no symbolic links, belong to the user of this process or to
root, and nobody else may write to either. All of it is checked on the open file, so nothing can be
exchanged in between, whoever may write to the folders above.
"""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class UntrustedError(OSError):
    """Somebody else could have written it, or it is damaged: the text says which."""


@contextmanager
def claimed(folder: Path, suffix: str) -> Iterator[None]:
    """Make the folder this user's own, and keep other processes that ask from it meanwhile.

    A folder of this user's that others could write to is closed to them, and its files of this
    suffix are removed. Raises OSError where it cannot be made, UntrustedError where it is somebody
    else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    opened = _open_folder(folder)
    try:
        found = os.fstat(opened)
        if found.st_uid == os.geteuid() and found.st_mode & _WRITABLE_BY_OTHERS:
            os.fchmod(opened, 0o700)
            remove(opened, names(opened, suffix))
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


@contextmanager
def trusted(folder: Path) -> Iterator[int]:
    """Open a folder that keeps to the rule. Raises UntrustedError, and OSError as opening does."""
    opened = _open_folder(folder)
    try:
        _require_ours(os.fstat(opened), folder.name)
        yield opened
    finally:
        os.close(opened)


def open_file(folder: int, name: str) -> int:
    """Open a file that keeps to the rule, in an open folder. Raises UntrustedError."""
    try:
        # O_NONBLOCK: opening a pipe of that name would wait for its writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        opened = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UntrustedError(f"{name} is a symbolic link, or cannot be opened: {error}") from error
    try:
        found = os.fstat(opened)
        _require_ours(found, name)
    except UntrustedError:
        os.close(opened)
        raise
    return opened


def write(folder: int, name: str, content: bytes) -> None:
    """Put a file into an open folder, all at once. Raises OSError."""
    handle, fresh = tempfile.mkstemp(dir=f"/proc/self/fd/{folder}")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            os.fchmod(handle, 0o644)
        os.rename(Path(fresh).name, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        Path(fresh).unlink(missing_ok=True)
        raise


def names(folder: int, suffix: str) -> list[str]:
    """List the files of an open folder that end so."""
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries if entry.name.endswith(suffix)]


def keep_newest(folder: int, among: list[str], count: int) -> None:
    """Remove all of these files but the newest."""
    times = {name: _modified_at(folder, name) for name in among}
    remove(folder, sorted(among, key=lambda name: times[name], reverse=True)[count:])


def remove(folder: int, among: list[str]) -> None:
    """Remove files of an open folder; another process may have done so."""
    for name in among:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)


def _modified_at(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return 0


def _open_folder(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except NotADirectoryError as error:
        raise UntrustedError(f"{folder} is a file or a symbolic link") from error


def _require_ours(found: os.stat_result, name: str) -> None:
    owner, user, mode = found.st_uid, os.geteuid(), found.st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UntrustedError(f"{name} is no plain file")
    if owner not in {0, user}:
        raise UntrustedError(f"{name} belongs to user {owner}, not to {user} or root")
    if mode & _WRITABLE_BY_OTHERS:
        raise UntrustedError(f"{name} can be written to by others (mode {stat.S_IMODE(mode):o})")
