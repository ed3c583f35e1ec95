"""The state file of a running service: how `paceline chat` and `paceline explain` find it."""

import os
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from paceline_cli.errors import LocalError
from paceline_tuner.decision import Decision, ReasonSubject
from paceline_tuner.outcome import Prediction
from paceline_tuner.service_report import ChangeOutcome, Phase, ServiceReport, Verdict
from paceline_tuner.service_spec import SLA, Mode
from paceline_tuner.tuned_limits import TunedLimits


class NoServiceError(LocalError):
    """No running local service fits; the message says what runs."""


@dataclass(frozen=True, slots=True)
class Explained:
    """One decision of the tuner about one pod, without what only its next decision needs."""

    at: float
    """Unix seconds."""
    pod: str
    mode: Mode
    phase: Phase
    verdict: Verdict
    binding: str
    reason: str
    inputs: dict[str, float | int | str | bool | None]
    prediction: Prediction
    current: TunedLimits | None
    wanted: TunedLimits | None
    chosen: TunedLimits | None
    applied: bool
    outcome: ChangeOutcome | None = None
    """How an earlier change turned out."""
    reason_subject: ReasonSubject = ""
    """The limits that `reason` explains; empty of an older `paceline up`, which did not say."""

    @classmethod
    def of(cls, decision: Decision, mode: Mode) -> "Explained":
        """Keep of a decision what a person asks about."""
        taken = {field.name for field in fields(cls)} - {"mode"}
        return cls(mode=mode, **{name: getattr(decision, name) for name in taken})


@dataclass(frozen=True, slots=True)
class LocalState:
    """One running `paceline up`."""

    name: str
    url: str
    model: str
    manifest: str
    pid: int
    started_at: float
    sla: SLA
    report: ServiceReport | None
    decisions: tuple[Explained, ...]
    """The newest, oldest first."""
    admin_url: str = ""
    """The address of its one pod's runtime API."""
    token_file: str = ""
    """Where the bearer token for it lies; only its owner can read it."""
    price_per_hour: float | None = None
    """What its pod is declared to cost."""


def write(folder: Path, state: LocalState) -> None:
    """Replace the service's file whole, so that a reader never sees half of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, state.name)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    draft.write_bytes(msgspec.json.encode(state))
    draft.replace(path)


def remove(folder: Path, name: str) -> None:
    """Forget a service that has ended."""
    _path(folder, name).unlink(missing_ok=True)


def find(folder: Path, name: str | None) -> LocalState:
    """The running service of that name; without a name, the only one that runs."""
    states = running(folder)
    if name is None and len(states) == 1:
        return next(iter(states.values()))
    if name in states:
        return states[name]
    names = ", ".join(sorted(states)) or "none"
    wanted = (
        "say which service" if states and name is None else f"no service {name or ''} runs here"
    )
    hint = "" if states else "; start one with: paceline up -f FILE"
    raise NoServiceError(f"{wanted}; running: {names}{hint}")


def _path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def running(folder: Path) -> dict[str, LocalState]:
    """Every running local service by name."""
    states = {}
    for path in sorted(folder.glob("*.json")):
        try:
            state = msgspec.json.decode(path.read_bytes(), type=LocalState)
        except (OSError, msgspec.DecodeError):
            continue  # ended between the two calls, or of another version
        if _is_alive(state.pid):
            states[state.name] = state
    return states


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
