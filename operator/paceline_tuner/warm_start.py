"""WarmStart: what earlier pods found out, for pods to come; bounded in number and age."""

from dataclasses import dataclass, replace

from paceline_tuner.service_spec import SLA
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry, is_as_strict

MAX_ENTRIES = 64
KEPT_S = 30 * 86_400.0
AVOIDED_S = 86_400.0
"""How long limits that failed a pod are not tried again."""

_FUTURE_S = 3600.0  # by which clocks may disagree


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """What a new pod starts from."""

    coefficients: WarmStartEntry
    """The step model does not depend on what is promised."""
    limits: WarmStartEntry | None
    """Limits that kept an SLA at least as strict as the declared one; None where none did."""


@dataclass(frozen=True, slots=True)
class WarmStart:
    """At most one entry per key and SLA, newest last. Frozen: each change gives a new one."""

    entries: tuple[WarmStartEntry, ...] = ()

    def add(self, entry: WarmStartEntry) -> "WarmStart":
        """Take in an entry if it is news; else stay the same."""
        old = self._find(entry.key, entry.sla)
        if old is not None and not entry.replaces(old):
            return self
        return self._with(entry, entry.at)

    def avoid(self, entry: WarmStartEntry, now: float) -> "WarmStart":
        """Remember that a pod which started from these limits missed its SLA."""
        held = self._find(entry.key, entry.sla)
        if held is None or not held.is_no_smaller(entry):
            return self  # other limits have been found since
        return self._with(replace(held, avoid_until=now + AVOIDED_S), now)

    def starting_point(self, key: EngineKey, sla: SLA, now: float) -> StartingPoint | None:
        """Find what a new pod of this key should start from."""
        found = [e for e in self.entries if e.key == key and now - e.at < KEPT_S]
        if not found:
            return None
        usable = [e for e in found if e.avoid_until <= now and is_as_strict(e.sla, sla)]
        same = next((entry for entry in usable if entry.sla == sla), None)
        # Of limits that all keep the SLA, the largest serve most.
        largest = max(usable, key=lambda e: (e.batch_size, e.token_budget), default=None)
        return StartingPoint(found[-1], same or largest)

    def merged(self, other: "WarmStart", now: float) -> "WarmStart":
        """Join two: under one key and SLA the newer entry, with the warnings of either."""
        joined = self
        for theirs in other.entries:
            if theirs.at > now + _FUTURE_S:
                continue  # it would never grow old
            mine = joined._find(theirs.key, theirs.sla)
            newer = theirs if mine is None or theirs.at > mine.at else mine
            if mine is not None:
                until = max(mine.avoid_until, theirs.avoid_until)
                # Proof that came after the warning stands against it.
                is_cleared = newer.is_certified and newer.at > until - AVOIDED_S
                newer = newer if is_cleared else replace(newer, avoid_until=until)
            if newer != mine:
                joined = joined._with(newer, now)
        return joined

    def _find(self, key: EngineKey, sla: SLA) -> WarmStartEntry | None:
        return next((e for e in self.entries if e.key == key and e.sla == sla), None)

    def _with(self, entry: WarmStartEntry, now: float) -> "WarmStart":
        others = [
            e
            for e in self.entries
            if (e.key, e.sla) != (entry.key, entry.sla) and now - e.at < KEPT_S
        ]
        kept = sorted([*others, entry], key=lambda e: e.at)
        return WarmStart(tuple(kept[-MAX_ENTRIES:]))
