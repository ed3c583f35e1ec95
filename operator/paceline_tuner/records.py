"""Records: the steps or requests of a window, as columns of numbers and one by one.

A decision sums up hundreds of records in some twenty ways. Sums over columns cost a tenth of sums
over objects, and columns take a quarter of the memory. So the objects are made anew, and only of
what is looked at one by one.
"""

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import astuple

from paceline_tuner.telemetry import RequestRecord, RequestRow, Step, StepRow

Record = TypeVar("Record", bound=Step | RequestRecord)
Column = npt.NDArray[np.float64]
"""One number of each record; NaN where it has none."""
Mask = npt.NDArray[np.bool_]

_LARGE: Final = frozenset({"seq", "attention", "weight", "num_decodes"})
"""Whole numbers that may exceed four bytes, and are exact in a float."""


class _Layout(Generic[Record]):
    """Where the fields of a kind of record are: eight bytes for times, four for other numbers.

    Words are numbered, in the order in which they first occur.
    """

    def __init__(self, row: type[Record], told: tuple[str, ...]) -> None:
        """Lay out the fields of `row`, and `told` properties of it that are numbers too."""
        self.row = row
        self.types = {field.name: field.type for field in msgspec.structs.fields(row)}
        self.words = tuple(name for name, kind in self.types.items() if kind is str)
        whole = [n for n, kind in self.types.items() if kind in {int, bool}]
        narrow = [name for name in (*whole, *told) if name not in _LARGE]
        wide = [n for n in (*self.types, *told) if n not in narrow and n not in self.words]
        self.told = told
        self.wide = {name: place for place, name in enumerate(wide)}
        self.narrow = {name: place for place, name in enumerate((*narrow, *self.words))}

    def restored(self, part: "Packed[Record]") -> Iterator[Record]:
        """Make the objects of a part anew."""
        fields = [self._values(part, name, kind) for name, kind in self.types.items()]
        return itertools.starmap(self.row, zip(*fields, strict=True))

    def _values(self, part: "Packed[Record]", name: str, kind: Any) -> Iterable[object]:
        if name in self.words:
            words = part.words[self.words.index(name)]
            return [words[number] for number in part.narrow[self.narrow[name]].tolist()]
        is_wide = name in self.wide
        row = part.wide[self.wide[name]] if is_wide else part.narrow[self.narrow[name]]
        values: list[float] = row.tolist()
        if kind in {int, bool, float}:
            return map(kind, values)
        made = int if kind == int | None else float
        return [None if math.isnan(value) else made(value) for value in values]


_STEPS: Final = _Layout(StepRow, ("num_decodes",))
_REQUESTS: Final = _Layout(RequestRow, ("is_ok", "is_as_wanted"))


class Packed(Generic[Record]):
    """The records of one answer."""

    __slots__ = ("narrow", "newest_at", "wide", "words")

    def __init__(
        self, records: Sequence[Record], newest_at: float, layout: _Layout[Record]
    ) -> None:
        """Pack records, of which there is at least one."""
        self.newest_at = newest_at
        """When the last of those ran or ended that they stand for."""
        values: dict[str, Sequence[Any]] = dict(
            zip(layout.types, zip(*map(astuple, records), strict=True), strict=True)
        )
        for name in layout.told:
            values[name] = [*map(attrgetter(name), records)]
        known = [
            {w: number for number, w in enumerate(dict.fromkeys(values[n]))} for n in layout.words
        ]
        self.words = tuple(tuple(map(sys.intern, numbers)) for numbers in known)
        for name, numbers in zip(layout.words, known, strict=True):
            values[name] = [*map(numbers.__getitem__, values[name])]
        self.wide = np.array([values[name] for name in layout.wide], np.float64)
        self.narrow = np.array([values[name] for name in layout.narrow], np.int32)


def packed_steps(steps: Sequence[StepRow], newest_at: float) -> Packed[StepRow]:
    """Pack steps, which stand for some until `newest_at`."""
    return Packed(steps, newest_at, _STEPS)


def packed_requests(requests: Sequence[RequestRow], newest_at: float) -> Packed[RequestRow]:
    """Pack requests, which stand for some until `newest_at`."""
    return Packed(requests, newest_at, _REQUESTS)


class Records(Sequence[Record]):
    """Some records in the order of time; a slice of them is a view."""

    __slots__ = ("_layout", "_narrow", "_objects", "_parts", "_skipped", "_wide")

    def __init__(
        self,
        parts: Sequence[Packed[Record]],
        layout: _Layout[Record],
        columns: tuple[Column, Column],
        skipped: int,
    ) -> None:
        """Read `columns`, wide and narrow, of `parts` without the `skipped` first records."""
        self._parts = parts
        self._layout = layout
        self._wide, self._narrow = columns
        self._skipped = skipped
        self._objects: tuple[Record, ...] | None = None

    def __len__(self) -> int:
        """Count the records, each once."""
        return int(self._wide.shape[1])

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        """Give one record, or a part of them."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                columns = self._wide[:, start:stop], self._narrow[:, start:stop]
                return Records(self._parts, self._layout, columns, self._skipped + start)
        return self._all()[index]

    def __iter__(self) -> Iterator[Record]:
        """Make the objects of all of them."""
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        """Compare record by record."""
        return isinstance(other, Sequence) and self._all() == tuple(other)

    __hash__ = None  # type: ignore[assignment]  # as that of a list

    def column(self, name: str) -> Column:
        """Give one number of each record."""
        place = self._layout.wide.get(name)
        found: Column = (
            self._narrow[self._layout.narrow[name]] if place is None else self._wide[place]
        )
        return found

    def _all(self) -> tuple[Record, ...]:
        if self._objects is None:
            self._objects = tuple(self._some())
        return self._objects

    def _some(self) -> Iterator[Record]:
        """Make no objects of a part of which no record is among these."""
        skipped, left = self._skipped, len(self)
        for part in self._parts:
            num = part.wide.shape[1]
            taken = min(max(num - skipped, 0), left)
            if taken > 0:
                yield from itertools.islice(self._layout.restored(part), skipped, skipped + taken)
            skipped, left = max(skipped - num, 0), left - taken


def steps_of(parts: Iterable[Packed[StepRow]]) -> Records[StepRow]:
    """Read the steps of some answers as one."""
    return _joined(tuple(parts), _STEPS)


def requests_of(parts: Iterable[Packed[RequestRow]]) -> Records[RequestRow]:
    """Read the requests of some answers as one."""
    return _joined(tuple(parts), _REQUESTS)


def column(records: Sequence[Any], name: str) -> Column:
    """Give one number of each record, whatever holds them."""
    if isinstance(records, Records):
        return records.column(name)
    return np.array([getattr(record, name) for record in records], np.float64)


def since(records: Sequence[Record], name: str, begin: float) -> Sequence[Record]:
    """Leave out the records whose number of this name, which grows, is below `begin`."""
    return records[int(np.searchsorted(column(records, name), begin)) :]


def after(records: Sequence[Record], seq: int) -> Sequence[Record]:
    """Give the records that came after number `seq`."""
    return records[int(np.searchsorted(column(records, "seq"), seq, side="right")) :]


def quantile(values: Column, weights: Column, share: float) -> float | None:
    """Find the least value that a `share` does not exceed, of values that each stand for some."""
    known = ~np.isnan(values)
    values, weights = values[known], weights[known]
    total = float(weights.sum())
    left = total - math.ceil(share * total)  # so many may be greater
    order = values.argsort()[::-1]
    reached = weights[order].cumsum().searchsorted(left, side="right")
    return float(values[order[reached]]) if reached < len(order) else None


def _joined(parts: tuple[Packed[Record], ...], layout: _Layout[Record]) -> Records[Record]:
    if not parts:
        return Records(
            parts, layout, (np.empty((len(layout.wide), 0)), np.empty((len(layout.narrow), 0))), 0
        )
    wide = np.concatenate([part.wide for part in parts], axis=1)
    narrow = np.concatenate([part.narrow for part in parts], axis=1, dtype=np.float64)
    return Records(parts, layout, (wide, narrow), 0)
