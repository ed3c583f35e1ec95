"""A fair queue for compiling: callers take turns, each with one grammar in progress at most."""

import threading
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class Turns(Generic[Item]):
    """Items of callers in a fair order, for several threads.

    Each caller's items keep their order. Those of the caller without a name, who may be many, are
    not held back for each other.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Item]] = OrderedDict()
        """The items of each caller; a caller that has had a turn moves to the end."""
        self._in_work: set[str] = set()
        self._lock = threading.Lock()

    def add(self, item: Item, *, caller: str) -> None:
        """Queue an item until its caller's turn."""
        with self._lock:
            self._waiting.setdefault(caller, deque()).append(item)

    def take(self) -> tuple[Item, str] | None:
        """Take the next item and its caller; None where every waiting caller has one in progress.

        The taker must call `done`, then `take` again: the caller's next item may then be due.
        """
        with self._lock:
            caller = next((each for each in self._waiting if each not in self._in_work), None)
            if caller is None:
                return None
            items = self._waiting[caller]
            item = items.popleft()
            if items:
                self._waiting.move_to_end(caller)
            else:
                del self._waiting[caller]
            if caller:
                self._in_work.add(caller)
            return item, caller

    def done(self, caller: str) -> None:
        """Note that the caller's item is done."""
        with self._lock:
            self._in_work.discard(caller)
