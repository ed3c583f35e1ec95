"""A queue of keys: each waits once, has one worker at a time, and backs off on errors.

Urgent keys go first, but for every fourth: what is always urgent must not starve the rest.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

Clock = Callable[[], float]

_FIRST_BACKOFF_S = 0.2
_LONGEST_BACKOFF_S = 60.0
_URGENT_IN_SUCCESSION = 3


@dataclass(slots=True)
class WorkQueue:
    """`add` at any time; workers loop over `get`, then `done`."""

    clock: Clock
    _waiting: dict[str, float] = field(init=False, default_factory=dict)
    """Keys in their order, with the time since when they wait."""
    _urgent: dict[str, None] = field(init=False, default_factory=dict)
    """Those of them that go first, in their order."""
    _in_succession: int = field(init=False, default=0)
    """Urgent keys taken since the last other."""
    _working: set[str] = field(init=False, default_factory=set)
    _again: dict[str, float] = field(init=False, default_factory=dict)
    """Added while worked on: they wait again as soon as they are done."""
    _failures: dict[str, int] = field(init=False, default_factory=dict)
    _timers: dict[str, asyncio.TimerHandle] = field(init=False, default_factory=dict)
    _held_until: dict[str, float] = field(init=False, default_factory=dict)
    """When keys may be tried again for which the API server asked for a pause."""
    _news: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def add(self, key: str, *, is_urgent: bool = False) -> None:
        """Let a key be worked on soon; before those that are not urgent."""
        if (held_s := self._held_until.get(key, self.clock()) - self.clock()) > 0:
            self.add_after(key, held_s)
            return
        if is_urgent:
            self._urgent.setdefault(key)
        self._held_until.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._working:
            self._again.setdefault(key, self.clock())
        else:
            self._waiting.setdefault(key, self.clock())
            self._news.set()

    def nudge(self, key: str) -> None:
        """Let a key be worked on soon, unless it waits because its last work failed.

        For what comes again by itself: it must not turn the wait after an error into a storm.
        """
        if key not in self._failures or key not in self._timers:
            self.add(key)

    def add_after(self, key: str, delay_s: float) -> None:
        """Let a key be worked on after a while, unless it is due sooner anyhow."""
        loop = asyncio.get_running_loop()
        due = loop.time() + delay_s
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= due:
            return
        if timer is not None:
            timer.cancel()
        self._timers[key] = loop.call_later(delay_s, self._add_now, key)

    async def get(self) -> str:
        """Take the key that has waited longest, of the urgent ones if there are any."""
        while not self._waiting:
            self._news.clear()
            await self._news.wait()
        key = self._choose()
        del self._waiting[key]
        self._urgent.pop(key, None)
        self._working.add(key)
        return key

    def has_urgent(self) -> bool:
        """Whether an urgent key waits."""
        return any(key in self._waiting for key in self._urgent)

    def done(self, key: str) -> None:
        """End the work on a key; errors are forgotten."""
        self._failures.pop(key, None)
        self._leave(key)

    def failed(self, key: str, *, not_before_s: float = 0.0) -> float:
        """End the work on a key and try again later; returns when, in seconds.

        Before `not_before_s` it is not tried whatever the news: the API server asked for that.
        """
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        # 2^16 is far past the longest wait; an unbounded power would overflow a float.
        delay_s = min(_LONGEST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(failures, 16))
        if not_before_s > 0:
            delay_s = min(_LONGEST_BACKOFF_S, max(delay_s, not_before_s))
            self._held_until[key] = self.clock() + delay_s
            self._again.pop(key, None)
        self._leave(key)
        if key not in self._waiting:
            self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: str) -> None:
        """Drop what is remembered of a key that is gone."""
        self._held_until.pop(key, None)
        self._failures.pop(key, None)
        self._urgent.pop(key, None)
        if timer := self._timers.pop(key, None):
            timer.cancel()

    def depth(self) -> int:
        """Count the keys that wait."""
        return len(self._waiting)

    def oldest_age_s(self) -> float:
        """Tell how long the oldest waiting key has waited."""
        since = next(iter(self._waiting.values()), None)
        return 0.0 if since is None else self.clock() - since

    def _add_now(self, key: str) -> None:
        """Queue a key whose delay is over; the API server may have asked to delay it further."""
        del self._timers[key]
        self.add(key)

    def _choose(self) -> str:
        urgent = next((key for key in self._urgent if key in self._waiting), None)
        if urgent is not None and self._in_succession < _URGENT_IN_SUCCESSION:
            self._in_succession += 1
            return urgent
        self._in_succession = 0
        return next(iter(self._waiting))

    def _leave(self, key: str) -> None:
        self._working.discard(key)
        if (since := self._again.pop(key, None)) is not None:
            self._waiting.setdefault(key, since)
            self._news.set()
