"""Step and request records, numbered as they come; the oldest are overwritten."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class Numbered(Generic[Record]):
    """A record and the number it got when it came."""

    seq: int
    record: Record


class Sequence:
    """The one counter that all rings share: the first record is number 1."""

    def __init__(self) -> None:
        self.last = 0

    def take(self) -> int:
        """Return the next number."""
        self.last += 1
        return self.last


class Ring(Generic[Record]):
    """The newest `capacity` records."""

    def __init__(self, capacity: int, sequence: Sequence) -> None:
        self._records: deque[Numbered[Record]] = deque(maxlen=capacity)
        self._sequence = sequence

    def add(self, record: Record) -> None:
        """Number the record and keep it."""
        self._records.append(Numbered(self._sequence.take(), record))

    def newest(self) -> Iterator[Record]:
        """Yield every record that is kept, newest first."""
        return (numbered.record for numbered in reversed(self._records))

    def since(self, seq: int) -> list[Numbered[Record]]:
        """Return every record with a number above `seq`, oldest first."""
        newer: list[Numbered[Record]] = []
        for numbered in reversed(self._records):
            if numbered.seq <= seq:
                break
            newer.append(numbered)
        newer.reverse()
        return newer
