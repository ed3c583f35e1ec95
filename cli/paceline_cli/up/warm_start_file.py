"""The tuner's memory of this machine, in a file of the state folder."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_json import decode, encode
from paceline_tuner.warm_start_store import StoreError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FileStore:
    """WarmStartStore on one file, which several `paceline up` may share."""

    path: Path

    async def load(self) -> WarmStart:
        """Read the warm start; an entry that is broken is left out, and the log says so."""
        try:
            text = self.path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return WarmStart()
        except OSError as problem:
            raise StoreError(str(problem)) from problem
        warm_start, problems = decode(text)
        for problem_text in problems:
            _log.warning("%s: %s", self.path, problem_text)
        return warm_start

    async def save(self, warm_start: WarmStart) -> None:
        """Replace the file whole, so that a reader never sees half of it."""
        draft = self.path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(encode(warm_start), encoding="utf-8")
            draft.replace(self.path)
        except OSError as problem:
            raise StoreError(str(problem)) from problem
