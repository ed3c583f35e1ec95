"""The newest changes of this pod's limits, each with the reason that came with it."""

import time
from collections import deque
from collections.abc import Callable

from paceline_page.content import Change
from paceline_sidecar.backend import EngineView
from paceline_wire import EngineTelemetry, Limits, LimitsState

_KEPT = 50
LEASE_LOST = "the operator was not heard of in time: the certified limits hold again"


class LimitLog:
    """Hears of every change of the limits, whoever makes it."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """Tell times by `clock`, in Unix seconds."""
        self._clock = clock
        self._reasons: dict[int, str] = {}
        self._changes: deque[Change] = deque(maxlen=_KEPT)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Every kept change, newest first."""
        return tuple(reversed(self._changes))

    def reason(self, epoch: int) -> str:
        """Return the last reason that was given for limits up to this epoch."""
        return next((self._reasons[at] for at in sorted(self._reasons)[::-1] if at <= epoch), "")

    def expect(self, epoch: int, reason: str) -> None:
        """Take in the reason of limits that are about to be asked for."""
        self._reasons[epoch] = reason
        for oldest in sorted(self._reasons)[:-_KEPT]:
            del self._reasons[oldest]

    def engine_changed(self, before: EngineView, after: EngineView) -> None:
        """Note what has changed in the limits of an engine; a new engine counts by itself."""
        if before.instance != after.instance:
            self._reasons.clear()
            return
        if before.limits is None or after.limits is None:
            return
        old, new = held(before.limits), held(after.limits)
        if (old.max_batch_size, old.token_budget) == (new.max_batch_size, new.token_budget):
            return
        is_lost = after.limits.lease_lost and not before.limits.lease_lost
        self._changes.append(
            Change(
                at=self._clock(),
                from_batch_size=old.max_batch_size,
                from_token_budget=old.token_budget,
                to_batch_size=new.max_batch_size,
                to_token_budget=new.token_budget,
                reason=LEASE_LOST if is_lost else self._reasons.get(after.limits.epoch, ""),
            )
        )

    def telemetry_arrived(self, message: EngineTelemetry) -> None:
        """Ignore heartbeats: limits are told apart from them."""


def held(state: LimitsState) -> Limits:
    """Return what holds, or will once a larger batch has ended: as the tuner sees it."""
    return state.effective if state.lease_lost else state.requested
