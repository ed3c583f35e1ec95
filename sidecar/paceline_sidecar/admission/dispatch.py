"""Hands what was admitted to the engine, fair between callers.

The engine computes a lane's prompts in the order in which it gets them, or by their turns among
those that it has (`turns`). So fairness is decided before it gets them: while somebody has several
items without a first token, the engine gets no more of a lane than keeps it busy, and whoever is
next by fair queueing comes next. Where nobody has more than one, that is their order of arrival,
and all are handed over at once.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from paceline_sidecar.admission.fair_queue import FairQueue
from paceline_sidecar.admission.tickets import Ticket, turn_of

_STEPS_AHEAD = 4
"""Steps full of prompts that the engine holds: it chooses one while another runs, and news of a
first token takes a moment."""
_LEAST_AHEAD = 8
_ROWS_AHEAD = 4
"""One in so many rows may become free at once."""


class Dispatcher:
    """One lane's way into the engine."""

    def __init__(self) -> None:
        self.step_tokens: float = math.inf
        """Prompt tokens that a step takes."""
        self.rows: float = math.inf
        """Requests that run at once."""
        self.sent: dict[Ticket, None] = {}
        """Handed to the engine, without a first token."""
        self.sent_tokens = 0
        self._held: FairQueue[Ticket] = FairQueue()
        self._sends: dict[Ticket, Callable[[], None]] = {}
        self._items: Counter[str] = Counter()
        """By flow."""
        self._tokens: Counter[str] = Counter()
        self._weights: dict[str, float] = {}
        self._num_crowded = 0
        """Flows with more than one item."""

    @property
    def num_held(self) -> int:
        """Count who waits for a turn."""
        return len(self._held)

    @property
    def is_contended(self) -> bool:
        """Whether somebody has several items, so that the order is not that of arrival."""
        return self._num_crowded > 0

    def held(self) -> Iterator[Ticket]:
        """Iterate over who waits for a turn, in the order of their turns."""
        return iter(self._held)

    def tokens_of(self, flow: str) -> int:
        """Return the prompt tokens of a flow's items."""
        return self._tokens[flow]

    def share_of(self, flow: str, weight: float) -> float:
        """Return the share of the engine that a flow has once it waits too."""
        others = sum(each for name, each in self._weights.items() if name != flow)
        return weight / (weight + others)

    def __iter__(self) -> Iterator[Ticket]:
        """Iterate over who waits here, in the order in which they are computed."""
        yield from sorted(self.sent, key=turn_of)
        yield from self._held

    def offer(self, item: Ticket, send: Callable[[], None], *, running: int) -> None:
        """Take in an item; `send` hands it to the engine, now or when its turn comes."""
        self._sends[item] = send
        self._items[item.flow] += 1
        self._tokens[item.flow] += item.tokens
        self._weights[item.flow] = item.weight
        self._num_crowded += self._items[item.flow] == 2  # noqa: PLR2004 - the second of its flow
        self._held.push(
            item, flow=item.flow, cost=item.cost, weight=item.weight, turn_at=item.turn_at
        )
        self.pump(running=running)

    def leave(self, item: Ticket) -> None:
        """Forget an item; unknown ones are ignored. Nothing is sent for it."""
        if self._sends.pop(item, None) is None and item not in self.sent:
            return
        if item in self.sent:
            del self.sent[item]
            self.sent_tokens -= item.tokens
        self._held.discard(item)
        self._items[item.flow] -= 1
        self._tokens[item.flow] -= item.tokens
        self._num_crowded -= self._items[item.flow] == 1
        if not self._items[item.flow]:
            del self._items[item.flow], self._tokens[item.flow], self._weights[item.flow]

    def pump(self, *, running: int) -> None:
        """Hand over what the engine has room for while `running` others are past their prompt."""
        while len(self._held) and (not self._num_crowded or self._has_room(running)):
            item = self._held.pop()
            self.sent[item] = None
            self.sent_tokens += item.tokens
            self._sends.pop(item)()

    def _has_room(self, running: int) -> bool:
        num_sent = len(self.sent)
        if num_sent < _LEAST_AHEAD:
            return True
        free_rows = max(self.rows - running, 0)
        return self.sent_tokens < _STEPS_AHEAD * self.step_tokens and num_sent < free_rows + max(
            _LEAST_AHEAD, self.rows / _ROWS_AHEAD
        )
