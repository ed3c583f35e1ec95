"""What the keeper of a cluster runs: plain data, passed as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """One long-running part of the cluster."""

    name: str
    argv: Sequence[str]
    ready: str | None = None
    """Reached before the next process starts: `tcp://HOST:PORT`, `unix://PATH` or an https URL."""
    authority: Path | None = None
    """The certificate that an https `ready` is checked against."""
    returns_after_s: float | None = None
    """How long after its end it is started again; None: its end is the cluster's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that the keeper does, in order."""

    logs: Path
    setup: Sequence[Sequence[str]] = ()
    processes: Sequence[Process] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=str, indent=1))
