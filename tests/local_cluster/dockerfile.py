"""What a Dockerfile of this repository puts into its image."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

_COPY = re.compile(r"^COPY (?!--from=)(?P<source>\S+) \S+$", re.MULTILINE)
_ENTRY = re.compile(r"^ENTRYPOINT (?P<command>\[.*\])$", re.MULTILINE)
_REQUIREMENTS = "pyproject.toml"  # read by a stage: what it names comes in as wheels


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """One image's Dockerfile, built with the repository's root as its context."""

    path: Path

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the files and folders of the repository that lie in the image."""
        found = _COPY.findall(self.path.read_text())
        return tuple(source for source in found if source != _REQUIREMENTS)

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the names of our packages among them."""
        names = (source.rpartition("/")[2] for source in self.sources)
        return tuple(name for name in names if name.startswith("paceline_"))

    @property
    def process(self) -> str:
        """Return the package that the image starts as a module."""
        match = _ENTRY.search(self.path.read_text())
        if match is None:
            raise ValueError(f"{self.path} has no ENTRYPOINT in JSON")
        *_, flag, package = json.loads(match["command"])
        if flag != "-m":
            raise ValueError(f"{self.path} must start a module, got {match['command']}")
        return str(package)
