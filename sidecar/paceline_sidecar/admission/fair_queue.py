"""Who of those that wait is next, fair between flows by their weights."""

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

_MOST_IDLE = 64
"""Finish tags of idle flows that are kept before those that say nothing any more are dropped."""


@dataclass(slots=True)
class _Flow(Generic[Item]):
    items: deque[tuple[Item, float]] = field(default_factory=deque)
    """Each with its cost over its weight."""
    finish: float = 0.0
    """Virtual time at which its last item is paid for."""


class FairQueue(Generic[Item]):
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996).

    A flow's items keep their order. While several flows wait, each gets a share of the cost that is
    worked off in proportion to its weight; one that comes anew waits for one item of each other
    flow at most, and gains nothing from having been away.
    """

    def __init__(self) -> None:
        self._flows: dict[str, _Flow[Item]] = {}
        self._heads: list[tuple[float, int, str]] = []
        """Virtual start of the first item of each flow that waits."""
        self._held: set[Item] = set()
        self._now = 0.0
        self._numbers = count()

    def __len__(self) -> int:
        """Count who waits."""
        return len(self._held)

    def __iter__(self) -> Iterator[Item]:
        """Iterate over who waits, in the order in which they would leave."""
        heads, places = list(self._heads), dict.fromkeys(self._flows, 0)
        number = count(next(self._numbers))
        while heads:
            start, _, name = heapq.heappop(heads)
            items, place = self._flows[name].items, places[name]
            item, cost = items[place]
            if item in self._held:
                start += cost
                yield item
            places[name] += 1
            if place + 1 < len(items):
                heapq.heappush(heads, (start, next(number), name))

    def push(self, item: Item, *, flow: str, cost: float, weight: float) -> None:
        """Let an item wait at the end of its flow."""
        self._held.add(item)
        known = self._flows.setdefault(flow, _Flow())
        known.items.append((item, cost / weight))
        if len(known.items) == 1:
            start = max(self._now, known.finish)
            heapq.heappush(self._heads, (start, next(self._numbers), flow))

    def pop(self) -> Item:
        """Take out who is next; raises `IndexError` where nobody waits."""
        while True:
            start, _, name = heapq.heappop(self._heads)
            flow = self._flows[name]
            item, cost = flow.items.popleft()
            is_held = item in self._held
            if is_held:
                self._held.remove(item)
                self._now, flow.finish = start, start + cost
            if flow.items:
                following = flow.finish if is_held else start
                heapq.heappush(self._heads, (following, next(self._numbers), name))
            if is_held:
                self._forget_idle()
                return item

    def discard(self, item: Item) -> None:
        """Forget an item that waits no more; unknown ones are ignored."""
        self._held.discard(item)

    def _forget_idle(self) -> None:
        if len(self._flows) > 2 * len(self._heads) + _MOST_IDLE:
            self._flows = {
                name: flow
                for name, flow in self._flows.items()
                if flow.items or flow.finish > self._now
            }
