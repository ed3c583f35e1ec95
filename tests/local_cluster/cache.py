"""The cache of binaries, wheels and images: one folder, safe to delete while nothing runs."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from local_cluster.progress import say

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "paceline" / "cluster"


def digest(*parts: bytes | str) -> str:
    """Name content by twelve hexadecimal digits."""
    total = hashlib.sha256()
    for part in parts:
        content = part.encode() if isinstance(part, str) else part
        total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()[:12]


def files_digest(files: Iterable[Path], *, root: Path) -> str:
    """Name a set of files by their contents and their paths below `root`."""
    parts: list[bytes | str] = []
    for file in sorted(files):
        parts += [str(file.relative_to(root)), file.read_bytes()]
    return digest(*parts)


@contextmanager
def locked(name: str, *, timeout_s: float = 3600) -> Iterator[None]:
    """Hold the lock of this name among all runs on this machine."""
    CACHE.mkdir(parents=True, exist_ok=True)
    lock = FileLock(CACHE / f"{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another run holds the lock on {name}: waiting for it")
        lock.acquire(timeout=timeout_s)
    try:
        yield
    finally:
        lock.release()
