"""What a Dockerfile of this repository puts into its image."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COPY = re.compile(r"^COPY (?!--from=)(?P<source>\S+) \S+$", re.MULTILINE)
_ENTRY = re.compile(r"^ENTRYPOINT (?P<command>\[.*\])$", re.MULTILINE)
_REQUIREMENTS = "pyproject.toml"  # read by a stage: what it names comes in as wheels


_STAGE = re.compile(r"^FROM (?P<base>\S+)(?: AS (?P<name>\S+))?\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a Dockerfile."""

    name: str
    base: str
    """Another stage, or a public image."""
    text: str


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

    def stages_of(self, target: str) -> Iterator[Stage]:
        """Yield the stages whose layers a target has, the target first."""
        text = self.path.read_text()
        found = list(_STAGE.finditer(text))
        ends = [match.start() for match in found[1:]] + [len(text)]
        stages = {
            match["name"]: Stage(match["name"], match["base"], text[match.end() : end])
            for match, end in zip(found, ends, strict=True)
        }
        stage = stages.get(target)
        while stage is not None:
            yield stage
            stage = stages.get(stage.base)

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
