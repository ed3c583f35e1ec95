"""A page of numbers that the processes of one run share: when each step was, and the counts.

A token's text is the number of its step, so whoever reads it can look up how old it is.
"""

import mmap
from pathlib import Path

STEPS = 4096
"""The vocabulary has this many words; the number of a step wraps around."""
_INTERVAL, _RECEIVED, _SENT, _TIMES = 0, 1, 2, 8


class Board:
    """Doubles in a file in memory; each has one writer."""

    def __init__(self, path: Path) -> None:
        size = (_TIMES + STEPS) * 8
        if not path.exists():
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._numbers = memoryview(mmap.mmap(file.fileno(), size)).cast("d")

    @property
    def interval_s(self) -> float:
        """Between two steps; 0 is as fast as the clients read."""
        return self._numbers[_INTERVAL]

    @interval_s.setter
    def interval_s(self, value: float) -> None:
        self._numbers[_INTERVAL] = value

    @property
    def received(self) -> float:
        """Tokens that the clients have read."""
        return self._numbers[_RECEIVED]

    @received.setter
    def received(self, value: float) -> None:
        self._numbers[_RECEIVED] = value

    @property
    def sent(self) -> float:
        """Tokens that the engine has given."""
        return self._numbers[_SENT]

    @sent.setter
    def sent(self, value: float) -> None:
        self._numbers[_SENT] = value

    def stamp(self, step: int, at: float) -> None:
        """Note when a step was."""
        self._numbers[_TIMES + step % STEPS] = at

    def time_of(self, word: int) -> float:
        """Return when the step was that a token names."""
        return self._numbers[_TIMES + word]
