"""What a run found, and how several runs become one record. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, under a name that says of what."""

    name: str
    value: float
    unit: str
    note: str = ""
    row: str = ""
    """A line for the table of block sizes, where one was found that is better."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A number that this machine cannot give, and why: no fault of anything that was measured."""

    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Broken:
    """Figures that could not be taken though they should have been, and why."""

    name: str
    why: str


Found = Figure | Absent | Broken


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the suite found, and on what."""

    name: str
    machine: Mapping[str, str]
    seconds: float
    figures: tuple[Figure, ...] = ()
    problems: tuple[str, ...] = ()
    """Why it is not whole: empty where it is."""
    absent: tuple[Absent, ...] = ()
    broken: tuple[Broken, ...] = ()

    @property
    def found(self) -> tuple[Found, ...]:
        """All that it tried."""
        return (*self.figures, *self.absent, *self.broken)

    @property
    def is_whole(self) -> bool:
        """All that it should have was taken."""
        return not self.problems and not self.broken


@dataclass(frozen=True, slots=True)
class Record:
    """The newest of each part."""

    parts: Mapping[str, Part] = field(default_factory=dict)

    def value(self, name: str) -> float | None:
        """Find a figure in whatever part; None where nobody measured it."""
        for part in self.parts.values():
            for figure in part.figures:
                if figure.name == name:
                    return figure.value
        return None

    @property
    def rows(self) -> tuple[str, ...]:
        """Lines for the table of block sizes."""
        figures = (figure for part in self.parts.values() for figure in part.figures)
        return tuple(figure.row for figure in figures if figure.row)

    def why_absent(self, name: str) -> str | None:
        """Find why a figure cannot be had; None where nobody tried, or it is there."""
        for part in self.parts.values():
            for absent in part.absent:
                if absent.name == name:
                    return absent.why
        return None


def merged(record: Record, parts: Iterable[Part]) -> Record:
    """Put parts in the place of those of the same name; what was not run again stays."""
    return Record({**record.parts, **{part.name: part for part in parts}})


def to_json(record: Record) -> dict[str, Any]:
    """Give the record as JSON holds it."""
    return {"parts": [asdict(part) for part in record.parts.values()]}


def from_json(found: Mapping[str, Any]) -> Record:
    """Read what `to_json` gave."""
    parts = (
        Part(
            name=part["name"],
            machine=part["machine"],
            seconds=part["seconds"],
            figures=tuple(Figure(**figure) for figure in part["figures"]),
            problems=tuple(part["problems"]),
            absent=tuple(Absent(**absent) for absent in part.get("absent", ())),
            broken=tuple(Broken(**broken) for broken in part.get("broken", ())),
        )
        for part in found["parts"]
    )
    return merged(Record(), parts)
