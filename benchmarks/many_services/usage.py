"""What a process has used: processor time and memory, from the kernel."""

import os
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Usage:
    """Of one process, since it began."""

    cpu_s: float
    rss_mib: float
    """At present."""
    peak_mib: float


def usage(pid: int) -> Usage:
    """Read it now; raises OSError where the process is gone."""
    process = Path(f"/proc/{pid}")
    # The second field is the command in brackets, which may hold spaces.
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    memory = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Usage(
        cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS,
        rss_mib=_mib(memory["VmRSS"]),
        peak_mib=_mib(memory["VmHWM"]),
    )


def _mib(text: str) -> float:
    return int(text.split(maxsplit=1)[0]) / 1024
