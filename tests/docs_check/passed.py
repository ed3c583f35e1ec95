"""Which commands passed in an earlier run, for one that goes on where that ended."""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Passed:
    """Commands by the seconds that each took, in a file; a run of hours may be cut off anywhere."""

    path: Path

    def seconds(self) -> dict[str, float]:
        """Return what each took that has passed."""
        if not self.path.exists():
            return {}
        found: dict[str, float] = json.loads(self.path.read_text())
        return found

    def add(self, text: str, seconds: float) -> None:
        """Keep one that has passed."""
        self._write({**self.seconds(), text: round(seconds, 1)})

    def forget(self, texts: Collection[str]) -> None:
        """Begin anew with these."""
        self._write({text: took for text, took in self.seconds().items() if text not in texts})

    def _write(self, found: dict[str, float]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(json.dumps(found, indent=1) + "\n")
        fresh.replace(self.path)
