"""The engine's counters of the last minute, from which rates and what grew are reckoned."""

from collections import deque
from dataclasses import dataclass, field

from paceline_sidecar.live.measured import WINDOW_S
from paceline_wire import EngineLoad, EngineTelemetry


@dataclass(frozen=True, slots=True)
class Counted:
    """The engine's counters at one of its heartbeats."""

    at: float
    load: EngineLoad


@dataclass(frozen=True, slots=True)
class RecentCounters:
    """Remembers heartbeats; begins anew with another engine, which counts from the beginning."""

    _kept: deque[Counted] = field(default_factory=deque)

    def add(self, heard: EngineTelemetry) -> None:
        """Keep a heartbeat, and forget what is older than a minute but for one to compare with."""
        kept, new = self._kept, Counted(heard.at, heard.load)
        if kept and (new.at < kept[-1].at or new.load.output_tokens < kept[-1].load.output_tokens):
            kept.clear()
        if not kept or new.at > kept[-1].at:
            kept.append(new)
        while len(kept) > 2 and kept[1].at <= new.at - WINDOW_S:  # noqa: PLR2004 - a rate needs two
            kept.popleft()

    def before(self, heard: EngineTelemetry, ago_s: float) -> Counted:
        """Add a heartbeat; return the newest that is so much older, or the oldest that is kept."""
        self.add(heard)
        old = (each for each in reversed(self._kept) if each.at <= heard.at - ago_s)
        return next(old, self._kept[0])
