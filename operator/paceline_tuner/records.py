"""Records: the steps or requests of a window, as columns of numbers and one by one.

A decision sums up hundreds of records in some twenty ways. Sums over columns cost a tenth of sums
over objects, and so the objects are made only of those that are looked at one by one.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar, overload

import msgspec
import numpy as np
import numpy.typing as npt

from paceline_tuner.telemetry import RequestRecord, RequestRow, Step, StepRow

Record = TypeVar("Record", bound=Step | RequestRecord)
Column = npt.NDArray[np.float64]
"""One number of each record; NaN where it has none."""
Mask = npt.NDArray[np.bool_]

_STEP: Final = (
    "seq",
    "at",
    "wall_ms",
    "decode",
    "prefill",
    "context",
    "running",
    "waiting",
    "weight",
    "num_decodes",
)
_REQUEST: Final = (
    "seq",
    "finished_at",
    "arrived_at",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "ttft_ms",
    "tpot_ms",
    "weight",
    "is_ok",
    "is_as_wanted",
)


class Packed(Generic[Record]):
    """The records of one answer: what is summed up as columns, the whole of them as bytes."""

    __slots__ = ("columns", "decode", "newest_at", "rows")

    def __init__(
        self,
        records: Sequence[Record],
        newest_at: float,
        names: Sequence[str],
        decode: Callable[[bytes], Sequence[Record]],
    ) -> None:
        """Pack records, of which there is at least one."""
        self.newest_at = newest_at
        """When the last of those ran or ended that they stand for."""
        self.columns = np.array([*map(attrgetter(*names), records)], np.float64).T.copy()
        self.rows = _pack(records)
        self.decode = decode


def packed_steps(steps: Sequence[StepRow], newest_at: float) -> Packed[Step]:
    """Pack steps, which stand for some until `newest_at`."""
    return Packed(steps, newest_at, _STEP, _unpack_steps)


def packed_requests(requests: Sequence[RequestRow], newest_at: float) -> Packed[RequestRecord]:
    """Pack requests, which stand for some until `newest_at`."""
    return Packed(requests, newest_at, _REQUEST, _unpack_requests)


class Records(Sequence[Record]):
    """Some records in the order of time; a slice of them is a view."""

    __slots__ = ("_columns", "_names", "_parts", "_skipped", "_whole")

    def __init__(
        self, parts: Sequence[Packed[Record]], names: Sequence[str], columns: Column, skipped: int
    ) -> None:
        """Read `columns`, [names, records], of `parts` without the `skipped` first records."""
        self._parts = parts
        self._names = names
        self._columns = columns
        self._skipped = skipped
        self._whole: tuple[Record, ...] | None = None

    def __len__(self) -> int:
        """Count the records, each once."""
        return int(self._columns.shape[1])

    @overload
    def __getitem__(self, index: int) -> Record: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Record]: ...

    def __getitem__(self, index: int | slice) -> Record | Sequence[Record]:
        """Give one record, or a part of them."""
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                columns = self._columns[:, start:stop]
                return Records(self._parts, self._names, columns, self._skipped + start)
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
        found: Column = self._columns[self._names.index(name)]
        return found

    def _all(self) -> tuple[Record, ...]:
        if self._whole is None:
            self._whole = tuple(self._some())
        return self._whole

    def _some(self) -> Iterator[Record]:
        """Unpack no part of which no record is among these."""
        skipped, left = self._skipped, len(self)
        for part in self._parts:
            num = part.columns.shape[1]
            if skipped < num and left > 0:
                taken = part.decode(part.rows)[skipped : skipped + left]
                left -= len(taken)
                yield from taken
            skipped = max(skipped - num, 0)


def steps_of(parts: Iterable[Packed[Step]]) -> Records[Step]:
    """Read the steps of some answers as one."""
    return _joined(tuple(parts), _STEP)


def requests_of(parts: Iterable[Packed[RequestRecord]]) -> Records[RequestRecord]:
    """Read the requests of some answers as one."""
    return _joined(tuple(parts), _REQUEST)


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


def _joined(parts: tuple[Packed[Record], ...], names: Sequence[str]) -> Records[Record]:
    columns = [part.columns for part in parts]
    whole = np.concatenate(columns, axis=1) if columns else np.empty((len(names), 0))
    return Records(parts, names, whole, 0)


_pack = msgspec.msgpack.Encoder().encode
_unpack_steps = msgspec.msgpack.Decoder(list[StepRow]).decode
_unpack_requests = msgspec.msgpack.Decoder(list[RequestRow]).decode
