"""Who of those that wait is next, fair between flows by their weights."""

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

_LEAST_KNOWN = 64
"""With no more flows than this, none is looked for that can be forgotten."""


@dataclass(slots=True)
class _Flow(Generic[Item]):
    items: deque[tuple[Item, float, float | None]] = field(default_factory=deque)
    """Each with its cost over its weight, and its turn."""
    weight: float = 1.0
    finish: float = 0.0
    """Virtual time at which its last item is paid for."""


class FairQueue(Generic[Item]):
    """Start-time fair queueing (Goyal, Vin and Cheng, 1996).

    A flow's items keep their order, or leave by their turns where they have some. While several
    flows wait, each gets a share of the cost that is worked off in proportion to its weight; one
    that comes anew waits for one item of each other flow at most, and gains nothing from having
    been away.

    The virtual time is the start of the item that left last, and it also moves on with the work
    that is done, as in weighted fair queueing (Demers, Keshav and Shenker, 1989). Without that, an
    endless row of new flows would all start at the same virtual time, before those that wait.
    """

    def __init__(self) -> None:
        self._flows: dict[str, _Flow[Item]] = {}
        self._heads: list[tuple[float, int, str]] = []
        """Virtual start of the first item of each flow that waits."""
        self._held: set[Item] = set()
        self._now = 0.0
        self._weight = 0.0
        """The sum of the weights of the flows that wait."""
        self._numbers = count()
        self._most_known = _LEAST_KNOWN

    @property
    def num_known(self) -> int:
        """Count the flows that are remembered: those that wait, and those that have just left."""
        return len(self._flows)

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
            item, cost, _ = items[place]
            if item in self._held:
                start += cost
                yield item
            places[name] += 1
            if place + 1 < len(items):
                heapq.heappush(heads, (start, next(number), name))

    def push(
        self, item: Item, *, flow: str, cost: float, weight: float, turn_at: float | None = None
    ) -> None:
        """Let an item wait at the end of its flow, or before those of it with a later turn."""
        self._held.add(item)
        known = self._flows.get(flow)
        if known is None:
            known = self._flows[flow] = _Flow()
        known.items.insert(_place(known.items, turn_at), (item, cost / weight, turn_at))
        if len(known.items) == 1:
            known.weight = weight
            self._weight += weight
            start = max(self._now, known.finish)
            heapq.heappush(self._heads, (start, next(self._numbers), flow))

    def pop(self) -> Item:
        """Take out who is next; raises `IndexError` where nobody waits."""
        while True:
            start, _, name = heapq.heappop(self._heads)
            flow = self._flows[name]
            item, cost, _ = flow.items.popleft()
            is_held = item in self._held
            if is_held:
                self._held.remove(item)
                self._now = max(start, self._now + cost * flow.weight / self._weight)
                flow.finish = start + cost
            if flow.items:
                following = flow.finish if is_held else start
                heapq.heappush(self._heads, (following, next(self._numbers), name))
            else:
                # Zero when nobody waits, so that rounding errors do not add up.
                self._weight = self._weight - flow.weight if self._heads else 0.0
            if is_held:
                self._forget_idle()
                return item

    def discard(self, item: Item) -> None:
        """Forget an item that waits no more; unknown ones are ignored."""
        self._held.discard(item)

    def _forget_idle(self) -> None:
        """Drop flows that no longer matter, whenever the number of flows has doubled."""
        if len(self._flows) <= self._most_known:
            return
        self._flows = {
            name: flow
            for name, flow in self._flows.items()
            if flow.items or flow.finish > self._now
        }
        self._most_known = 2 * len(self._flows) + _LEAST_KNOWN


def _place(items: deque[tuple[Item, float, float | None]], turn_at: float | None) -> int:
    """Find the place behind everybody who has an earlier turn, or none."""
    place = len(items)
    if turn_at is not None:
        for _, _, other in reversed(items):
            if other is None or other <= turn_at:
                break
            place -= 1
    return place
