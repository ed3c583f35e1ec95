"""Reads Linux's own files: the text of one, and the folders of the process's cgroups."""

from collections.abc import Iterator
from pathlib import Path

_CGROUPS = "sys/fs/cgroup"


def cgroups(controller: str, root: Path) -> Iterator[Path]:
    """Name the folders that may hold a limit of `cpu` or `memory`: the process's own and above.

    Where a container sees its path on the host but only its own folder, that is the topmost.
    """
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / _CGROUPS / controllers
        if not top.exists():
            top = root / _CGROUPS / controller
        own = Path(path.lstrip("/"))
        yield from (top / folder for folder in (own, *own.parents))


def read_text(path: Path) -> str:
    """Return the file's text; nothing where there is no such file."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
