"""The trials of a long measurement, each kept as it ends, so that an interrupted one goes on."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from paceline_cli.bench.document import as_json, read_as
from paceline_cli.bench.traffic_choice import TrafficChoice
from paceline_cli.errors import BadInputError
from paceline_cli.manifest import load
from paceline_cli.traffic.calibration import machine

_ASKED: Final = "asked"
_Read = TypeVar("_Read")


class KeptTrials:
    """One file a trial, in a folder that also says what was asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def has(self, name: str) -> bool:
        """Whether the trial has ended."""
        return self._path(name).exists()

    def keep(self, name: str, result: object) -> None:
        """Write what came of it: whole, or not at all."""
        path = self._path(name)
        draft = path.with_suffix(".draft")
        draft.write_text(as_json(result), encoding="utf-8")
        draft.replace(path)

    def read(self, name: str, kind: type[_Read]) -> _Read:
        """Read what came of it. Raises BadInputError."""
        return read_as(self._path(name), kind)

    def _path(self, name: str) -> Path:
        return self._folder / f"{re.sub(r'[^a-z0-9.]+', '-', name.lower())}.json"


def measurement(command: str, manifest: Path, traffic: TrafficChoice) -> dict[str, str]:
    """Name all that decides a trial's figures. A bad manifest is refused under its own name."""
    load(manifest)
    return {
        "command": command,
        "machine": machine(),
        "manifest": manifest.read_text(encoding="utf-8"),
        **{name: str(getattr(traffic, name)) for name in TrafficChoice.__dataclass_fields__},
    }


def kept_trials(folder: Path, asked: Mapping[str, str], *, resume: bool) -> KeptTrials:
    """Open the folder; without `resume`, empty it first.

    `asked` is what `measurement` says. Raises BadInputError where trials of another
    measurement are to be resumed: their figures do not belong beside each other.
    """
    trials = KeptTrials(folder)
    if resume and trials.has(_ASKED):
        before = trials.read(_ASKED, dict[str, str])
        others = sorted(name for name in {*before, *asked} if before.get(name) != asked.get(name))
        if others:
            raise BadInputError(
                f"{folder} has trials of another measurement, with another {' and '.join(others)}:"
                " ask for the same, choose another --out, or begin anew without --resume"
            )
        return trials
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json"):
        path.unlink()
    trials.keep(_ASKED, asked)
    return trials
