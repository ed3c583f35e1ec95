"""The table of blocks: which rows there are, and the one that serves a GPU and a class of calls.

A row speaks of a device by its name, of a generation (`sm_90`), or of `any`. A device asks for
rows under its own name first, then under generations of its major version from its own down, then
for those of any; within each, the first row whose shape the call has serves.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_kernels.tuned.spaces import SPACES, Blocks, Shape

ANY = "any"
_FIELDS = {"gpu", "name", "kernel", "shape", "blocks", "because"}
_OPTIONAL = {"name"}


class BadTable(ValueError):  # noqa: N818 - what it says is a sentence about the table
    """The table says something that no kernel understands."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """What a row is found by."""

    name: str
    capability: tuple[int, int]
    """Major and minor."""


NO_GPU = Gpu("", (0, 0))
"""A CPU, in Triton's interpreter."""


@dataclass(frozen=True, slots=True)
class Row:
    """Blocks of one kernel, for the calls of a class, on some GPUs."""

    gpu: str
    """`any`, or a generation: `sm_90`."""
    name: str | None
    """Of the one device that it is for."""
    kernel: str
    shape: Shape
    """What a call must have; what is not named may be any."""
    blocks: Blocks
    because: str
    """The measurement or the arithmetic that it is from."""

    def serves(self, kernel: str, shape: Shape) -> bool:
        """Whether a call is of this row's class."""
        return kernel == self.kernel and all(shape[k] == value for k, value in self.shape.items())


@dataclass(frozen=True, slots=True)
class Table:
    """All rows, in the order of the file."""

    rows: tuple[Row, ...]

    def row_for(self, gpu: Gpu, kernel: str, shape: Shape) -> Row:
        """Find the row that serves. Raises BadTable where there is none."""
        for name, generation in _places(gpu):
            for row in self.rows:
                if (row.name, row.gpu) == (name, generation) and row.serves(kernel, shape):
                    return row
        raise BadTable(f"no row of any gpu has blocks of {kernel} for {dict(shape)}")


def read_table(lines: Iterable[str]) -> Table:
    """Parse a row a line. Raises BadTable, which names the line, the field and the rule."""
    rows: dict[int, Row] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _row_of(json.loads(line))
        except ValueError as error:
            raise BadTable(f"line {number}: {error}") from error
        for earlier, other in rows.items():
            if _speaks_of(row) == _speaks_of(other):
                raise BadTable(f"line {number}: it speaks of the same as line {earlier}")
        rows[number] = row
    return Table(tuple(rows.values()))


def line_of(row: Row) -> str:
    """Write a row as the file has it."""
    found: dict[str, Any] = {"gpu": row.gpu}
    if row.name is not None:
        found["name"] = row.name
    found |= {"kernel": row.kernel, "shape": dict(row.shape), "blocks": dict(row.blocks)}
    return json.dumps(found | {"because": row.because})


def _speaks_of(row: Row) -> tuple[object, ...]:
    return row.gpu, row.name, row.kernel, dict(row.shape)


def _places(gpu: Gpu) -> Iterator[tuple[str | None, str]]:
    major, minor = gpu.capability
    yield gpu.name, f"sm_{major}{minor}"
    for lower in range(minor, -1, -1):
        yield None, f"sm_{major}{lower}"
    yield None, ANY


def _row_of(found: object) -> Row:
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 - of the file, not of an argument
            f"a row must be an object, got {found!r}"
        )
    if unknown := sorted(found.keys() - _FIELDS):
        raise ValueError(f"{unknown[0]} is no field of a row")
    if missing := sorted(_FIELDS - _OPTIONAL - found.keys()):
        raise ValueError(f"{missing[0]} is missing")
    row = Row(name=found.get("name"), **{name: found[name] for name in _FIELDS - _OPTIONAL})
    _check_gpu(row)
    if row.kernel not in [*SPACES]:  # in a list: what cannot be hashed is no kernel either
        raise ValueError(f"kernel must be one of {', '.join(SPACES)}, got {row.kernel!r}")
    space = SPACES[row.kernel]
    _check_values("shape", row.shape, space.classes)
    _check_values("blocks", row.blocks, space.blocks)
    if missing := sorted(space.blocks.keys() - row.blocks.keys()):
        raise ValueError(f"blocks of {row.kernel} must have {missing[0]}")
    if not isinstance(row.because, str) or not row.because:
        raise ValueError(f"because must say what the row is from, got {row.because!r}")
    return row


def _check_gpu(row: Row) -> None:
    is_generation = isinstance(row.gpu, str) and re.fullmatch(r"sm_\d{2,3}", row.gpu)
    if not is_generation and row.gpu != ANY:
        raise ValueError(f"gpu must be {ANY} or a generation like sm_90, got {row.gpu!r}")
    if row.name is not None and (not is_generation or not isinstance(row.name, str)):
        raise ValueError(f"name needs a generation beside it, got {row.name!r} with {row.gpu!r}")


def _check_values(field: str, found: object, allowed: Mapping[str, tuple[int | str, ...]]) -> None:
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 - as above
            f"{field} must be an object, got {found!r}"
        )
    for name, value in found.items():
        if name not in allowed:
            known = ", ".join(allowed) or "nothing"
            raise ValueError(f"{field} may have {known}, got {name!r}")
        if value not in allowed[name] or isinstance(value, bool):
            raise ValueError(
                f"{field}.{name} must be one of {', '.join(map(str, allowed[name]))}, got {value!r}"
            )
