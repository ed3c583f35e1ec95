"""Records: the steps or requests of a window, as columns of numbers and one by one.

A decision sums up hundreds of records in some twenty ways. Sums over columns cost a tenth of sums
over objects, and columns take a quarter of the memory. So the objects are made anew, and only of
what is looked at one by one.
"""

import itertools
import math
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from paceline_tuner.telemetry import AS_WANTED, RequestRecord, RequestRow, Step, StepRow

Record = TypeVar("Record", bound=Step | RequestRecord)
Column = npt.NDArray[np.float64]
"""One number of each record; NaN where it has none."""
Mask = npt.NDArray[np.bool_]
Words = tuple[tuple[str, ...], ...]
"""The words of each text field, each at the index by which records refer to it."""

_LARGE: Final = frozenset({"seq", "attention"})
"""Whole numbers that often exceed four bytes, and are exact in a float."""
_NARROW: Final = 2**31
_NONE: Final = -1
"""Stands for a missing value in a column of four-byte integers, which are never negative."""
_MOST_WORDS: Final = 64
"""Words kept of one field; beyond it, those that no record uses any more are dropped."""


class Layout(Generic[Record]):
    """Where the fields of a kind of record are: eight bytes for times, four for other numbers.

    Words are numbered, in the order in which they first occur.
    """

    def __init__(
        self,
        row: type[Record],
        told: tuple[str, ...],
        tell: Callable[["Layout[Record]", Column, Words], None],
        unread: Collection[str] = (),
    ) -> None:
        """Lay out the fields of `row` but for those `unread`.

        `tell` fills the rows of `told`: properties that are computed from the fields.
        """
        fields = msgspec.structs.fields(row)
        self.row = row
        self.tell = tell
        self.types = {field.name: field.type for field in fields}
        self.defaults = {field.name: field.default for field in fields if field.name in unread}
        self.words = tuple(name for name, kind in self.types.items() if kind is str)
        self.numbers = tuple(name for name in self.types if name not in self.words)
        """What the columns of `matrix` are."""
        kept = [name for name in self.numbers if name not in unread]
        whole = {n for n in kept if self.types[n] in {int, bool, int | None}} - _LARGE
        wide, narrow = [n for n in kept if n not in whole], [n for n in kept if n in whole]
        self.wide_numbers = [self.numbers.index(name) for name in wide]
        self.narrow_numbers = [self.numbers.index(name) for name in narrow]
        self.wide = {name: place for place, name in enumerate(wide)}
        narrow = [*narrow, *self.words]
        self.num_narrow = len(narrow)
        self.narrow = {name: place for place, name in enumerate((*narrow, *told))}
        """What is kept in four bytes, and behind it what is told."""
        self._numbers_of = attrgetter(*self.numbers)

    def matrix(self, records: Sequence[Record]) -> Column:
        """Give every number of some records, each record a row; NaN for None.

        Raises OverflowError where one is larger than any float.
        """
        return np.array([*map(self._numbers_of, records)], np.float64)

    def restored(self, wide: Column, narrow: Column, words: Words) -> Iterator[Record]:
        """Make the objects anew."""
        fields = [
            self._values(name, kind, wide, narrow, words) for name, kind in self.types.items()
        ]
        return itertools.starmap(self.row, zip(*fields, strict=False))

    def _values(
        self, name: str, kind: Any, wide: Column, narrow: Column, words: Words
    ) -> Iterable[object]:
        if name in self.defaults:
            return itertools.repeat(self.defaults[name])
        row = wide[self.wide[name]] if name in self.wide else narrow[self.narrow[name]]
        values: list[float] = row.tolist()
        if name in self.words:
            known = words[self.words.index(name)]
            return [known[int(number)] for number in values]
        if kind in {int, bool, float}:
            return map(kind, values)
        if kind == int | None:
            return [None if value == _NONE else int(value) for value in values]
        return [None if math.isnan(value) else value for value in values]


def _tell_of_steps(layout: Layout[StepRow], narrow: Column, words: Words) -> None:
    """Count `num_decodes`."""
    del words
    decodes = narrow[layout.narrow["decodes"]]
    itself = narrow[layout.narrow["decode"]] > 0
    narrow[layout.narrow["num_decodes"]] = np.where(decodes == _NONE, itself, decodes)


def _tell_of_requests(layout: Layout[RequestRow], narrow: Column, words: Words) -> None:
    """Tell `is_ok` and `is_as_wanted`."""
    outcomes = words[layout.words.index("outcome")]
    numbers = narrow[layout.narrow["outcome"]].astype(np.intp)
    narrow[layout.narrow["is_ok"]] = np.array([each == "ok" for each in outcomes])[numbers]
    are_wanted = np.array([each in AS_WANTED for each in outcomes])
    narrow[layout.narrow["is_as_wanted"]] = are_wanted[numbers]


STEPS: Final = Layout(StepRow, ("num_decodes",), _tell_of_steps)
REQUESTS: Final = Layout(RequestRow, ("is_ok", "is_as_wanted"), _tell_of_requests)
READ_STEPS: Final = Layout(
    StepRow,
    ("num_decodes",),
    _tell_of_steps,
    unread=(
        *("waiting_tokens", "preemptions", "paced_tokens", "predicted_ms"),
        *("host_ms", "kv_used", "draft_ms"),
    ),
)
"""The fields that decisions read; all others are restored with their defaults."""
READ_REQUESTS: Final = Layout(
    RequestRow, ("is_ok", "is_as_wanted"), _tell_of_requests, unread=("queue_ms", "epoch")
)


class Kept(Generic[Record]):
    """The records of a window, answer by answer."""

    __slots__ = ("_answers", "_layout", "_narrow", "_wide", "_words")

    def __init__(self, layout: Layout[Record]) -> None:
        """Hold nothing yet."""
        self._layout = layout
        self.clear()

    def clear(self) -> None:
        """Forget all."""
        layout = self._layout
        self._answers = array("d")
        """Of each answer, how many records are left of it, and when the newest one of it ended."""
        self._wide: Column = np.empty((len(layout.wide), 0))
        self._narrow: npt.NDArray[Any] = np.empty((layout.num_narrow, 0), np.int32)
        self._words: Words = ((),) * len(layout.words)

    @property
    def newest_at(self) -> float:
        """When the newest step or request that these records stand for ran or ended."""
        return self._answers[-1] if self._answers else -math.inf

    def add(self, records: Sequence[Record], matrix: Column, newest_at: float) -> None:
        """Take the records of an answer, which stand for some until `newest_at`, as `matrix`."""
        layout, numbers = self._layout, matrix.T
        wide, whole = numbers[layout.wide_numbers], numbers[layout.narrow_numbers]
        whole[np.isnan(whole)] = _NONE
        rows = [whole]
        if layout.words:
            rows.append(np.array(self._numbered(records), np.float64))
        narrow = _in_four_bytes(np.concatenate(rows))
        self._answers.extend((len(records), newest_at))
        self._wide = np.concatenate((self._wide, wide), axis=1)
        self._narrow = np.concatenate((self._narrow, narrow), axis=1)

    def forget(self, before: float) -> None:
        """Drop the answers that had ended by then."""
        num, first, answers = 0, 0, self._answers
        while first < len(answers) and answers[first + 1] < before:
            num += int(answers[first])
            first += 2
        if first:
            self._answers = answers[first:]
            # Copies: a view would keep what is forgotten.
            self._wide = self._wide[:, num:].copy()
            self._narrow = _in_four_bytes(self._narrow[:, num:].copy())
            self._drop_words()

    def read(self) -> "Records[Record]":
        """Give all of them, as they are now."""
        layout = self._layout
        narrow = np.empty((len(layout.narrow), self._narrow.shape[1]))
        narrow[: layout.num_narrow] = self._narrow
        layout.tell(layout, narrow, self._words)
        return Records(layout, self._wide, narrow, self._words)

    def _numbered(self, records: Sequence[Record]) -> list[list[int]]:
        """Give the numbers of each field's words."""
        rows, words = [], []
        for name, known in zip(self._layout.words, self._words, strict=True):
            said = [getattr(record, name) for record in records]
            kept = dict.fromkeys((*known, *said))
            if len(kept) > len(known):
                known = tuple(map(sys.intern, kept))  # noqa: PLW2901 - more of the same
            numbers = {word: number for number, word in enumerate(known)}
            rows.append([numbers[word] for word in said])
            words.append(known)
        self._words = tuple(words)
        return rows

    def _drop_words(self) -> None:
        """Number words anew where a pod goes on finding new ones."""
        for place, name in enumerate(self._layout.words):
            known, row = self._words[place], self._layout.narrow[name]
            if len(known) > _MOST_WORDS:
                used, numbers = np.unique(self._narrow[row].astype(np.intp), return_inverse=True)
                self._narrow[row] = numbers
                left = tuple(known[number] for number in used.tolist())
                self._words = (*self._words[:place], left, *self._words[place + 1 :])


def _in_four_bytes(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make numbers narrow, but where one of them does not fit."""
    if values.dtype == np.int32 or (values.size and np.abs(values).max() >= _NARROW):
        return values
    return values.astype(np.int32)


class Records(Sequence[Record]):
    """Some records in the order of time; a slice of them is a view."""

    __slots__ = ("_columns", "_layout", "_narrow", "_objects", "_wide", "_words")

    def __init__(self, layout: Layout[Record], wide: Column, narrow: Column, words: Words) -> None:
        """Read the columns of all records, each kind as `layout` has it."""
        self._layout = layout
        self._wide = wide
        self._narrow = narrow
        self._words = words
        self._columns: dict[str, Column] = {}
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
                wide, narrow = self._wide[:, start:stop], self._narrow[:, start:stop]
                return Records(self._layout, wide, narrow, self._words)
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
        found = self._columns.get(name)
        if found is None:
            place = self._layout.wide.get(name)
            found = self._narrow[self._layout.narrow[name]] if place is None else self._wide[place]
            self._columns[name] = found
        return found

    def _all(self) -> tuple[Record, ...]:
        if self._objects is None:
            restored = self._layout.restored(self._wide, self._narrow, self._words)
            self._objects = tuple(restored)
        return self._objects


def column(records: Sequence[Any], name: str) -> Column:
    """Give one number of each record, whatever holds them."""
    if isinstance(records, Records):
        return records.column(name)
    return np.array([getattr(record, name) for record in records], np.float64)


def since(records: Sequence[Record], name: str, begin: float) -> Sequence[Record]:
    """Leave out the records whose number of this name, which grows, is below `begin`."""
    return records[int(column(records, name).searchsorted(begin)) :]


def after(records: Sequence[Record], seq: int) -> Sequence[Record]:
    """Give the records that came after number `seq`."""
    return records[int(column(records, "seq").searchsorted(seq, side="right")) :]


def quantile(values: Column, weights: Column, share: float) -> float | None:
    """Find the least value that a `share` does not exceed, of values that each stand for some."""
    known = ~np.isnan(values)
    values, weights = values[known], weights[known]
    total = float(weights.sum())
    left = total - math.ceil(share * total)  # so many may be greater
    order = values.argsort()[::-1]
    reached = weights[order].cumsum().searchsorted(left, side="right")
    return float(values[order[reached]]) if reached < len(order) else None
