"""Compiled libraries in a folder: `KEY-DIGEST.so`, loaded only where nobody else could write.

The rule is that of `paceline_kernels.kept_files`; and the file's content has the digest that its
name says. What does not keep to it is not loaded. It is checked on the open file, and that very
file is loaded.
"""

import ctypes
import hashlib
import os
from ctypes import CDLL
from pathlib import Path
from typing import Final

from paceline_kernels import kept_files
from paceline_kernels.kept_files import UntrustedError

SUFFIX: Final = ".so"
_KEPT: Final = 16
"""Libraries in a cache; the oldest go first."""
_DIGITS: Final = 32


class LibraryError(Exception):
    """A library cannot be loaded: the text says why."""


def load_stored(folder: Path, key: str) -> CDLL | None:
    """Load the library of this key; None where there is none.

    Raises LibraryError, and UntrustedError or another OSError where it cannot be read.
    """
    with kept_files.trusted(folder) as opened:
        names = sorted(name for name in kept_files.names(opened, SUFFIX) if _is_of(key, name))
        return _load(opened, names[0]) if names else None


def store(folder: Path, key: str, library: Path) -> None:
    """Put a copy of a library into the folder, under its key, all at once.

    Raises OSError where the folder cannot be written to, or others may write to it.
    """
    content = library.read_bytes()
    name = f"{key}-{_digest(content)}{SUFFIX}"
    with kept_files.trusted(folder) as opened:
        kept_files.write(opened, name, content)
        others = [each for each in kept_files.names(opened, SUFFIX) if each != name]
        stale = [each for each in others if _is_of(key, each)]
        kept_files.remove(opened, stale)
        kept_files.keep_newest(opened, [n for n in others if n not in stale], _KEPT - 1)


def load_made(library: Path) -> CDLL:
    """Load what this process has just made in a folder of its own.

    Raises LibraryError, and OSError where it cannot be read.
    """
    with kept_files.trusted(library.parent) as opened:
        return _load_file(kept_files.open_file(opened, library.name), library.name)


def _load(folder: int, name: str) -> CDLL:
    opened = kept_files.open_file(folder, name)
    with os.fdopen(os.dup(opened), "rb") as file:
        digest = _digest(file.read())
    if not name.endswith(f"-{digest}{SUFFIX}"):
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
    return name.startswith(f"{key}-") and len(name) == len(f"{key}-{SUFFIX}") + _DIGITS


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]
