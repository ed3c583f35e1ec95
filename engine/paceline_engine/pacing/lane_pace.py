"""What paces a step: the limits of the lanes that decode in it, and the slack of its decodes.

A request that got its first token at `first_i` and has `generated_i` tokens keeps S milliseconds
per token as long as its next one comes before `first_i + S * generated_i`. What is left until
then, with a part of S held back, is its slack:

    s_i = first_i + 0.93 * S * generated_i - now
    tau = clamp(20th percentile of s_i, 0.9 * S, 2 * S)

The running decodes of a lane get one token each in every step, or none where the batch lane
pauses, so between two steps all s_i of a lane move alike: their order changes only as requests
come and go, and a step looks up one place of a sorted list, or of two that it merges that far.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import merge
from itertools import islice

from paceline_engine.core.request import Request
from paceline_wire.limits import Lane, Limits

_LEAD = 0.93  # of S: what is held back for the noise of the steps still to come
_QUANTILE = 0.2
_LEAST = 0.9  # of S: below it, steps would be all overhead and none would catch up
LONGEST_STEP = 2.0  # of S: however far ahead the requests are, a gap must not look like a stall


def limits_for_decodes(limits: Limits, decodes: Iterable[Request]) -> Limits:
    """Choose the limits that pace a step of these decodes."""
    if limits.batch_step_target_ms is None:
        return limits
    lanes = {request.lane for request in decodes}
    return limits_for_lanes(
        limits, has_interactive="interactive" in lanes, has_batch="batch" in lanes
    )


def limits_for_lanes(limits: Limits, *, has_interactive: bool, has_batch: bool) -> Limits:
    """Choose the limits that pace a step: the least of what the lanes that decode in it want.

    A step that is paced by the slack of its requests may take `LONGEST_STEP` times their pace;
    where the batch lane wants less than that, both lanes get a plain target.
    """
    batch_ms = limits.batch_step_target_ms
    if batch_ms is None or not has_batch:
        return limits
    if not has_interactive:
        return replace(limits, step_target_ms=batch_ms, pace_tpot_ms=None)
    pace_ms, target_ms = limits.pace_tpot_ms, limits.step_target_ms
    least_ms = batch_ms if target_ms is None else min(target_ms, batch_ms)
    if pace_ms is not None and batch_ms < LONGEST_STEP * pace_ms:
        return replace(limits, step_target_ms=min(least_ms, pace_ms), pace_tpot_ms=None)
    return replace(limits, step_target_ms=least_ms)


def step_allowance_ms(slack_ms: float | None, pace_ms: float) -> float:
    """tau: what one step may take at a pace of `pace_ms` per token; the least where unknown."""
    if slack_ms is None or math.isnan(slack_ms):
        return _LEAST * pace_ms
    return min(max(slack_ms, _LEAST * pace_ms), LONGEST_STEP * pace_ms)


class Slack:
    """The running decodes of a lane, by how far they are ahead of their pace."""

    __slots__ = ("_begun", "_order", "_pace_s", "_rounds")

    def __init__(self) -> None:
        """Start without requests."""
        self._begun: dict[str, tuple[float, int]] = {}
        """By request: when its first token came, and its tokens minus the rounds by then."""
        self._rounds = 0
        self._pace_s = 0.0
        """The held-back pace that `_order` is sorted for; 0 before the first call of `due`."""
        self._order: list[float] = []
        """`s_i + now` of each request at round 0, ascending."""

    def __len__(self) -> int:
        """Requests that are followed."""
        return len(self._begun)

    def begin(self, request_id: str, *, first_at: float, generated: int) -> None:
        """Follow a request that has `generated` tokens, the first since `first_at` (seconds)."""
        entry = (first_at, generated - self._rounds)
        self._begun[request_id] = entry
        if self._pace_s:
            insort(self._order, self._key(entry))

    def advance(self) -> None:
        """Every request that is followed got one token."""
        self._rounds += 1

    def end(self, request_id: str) -> None:
        """Stop following a request; unknown ids are ignored."""
        entry = self._begun.pop(request_id, None)
        if entry is not None and self._pace_s:
            del self._order[bisect_left(self._order, self._key(entry))]

    def due(self, pace_ms: float, first: int = 0) -> Iterator[float]:
        """Walk the times by which the next tokens keep the pace, from the `first` soonest on."""
        pace_s = _LEAD * pace_ms / 1e3
        if pace_s != self._pace_s:
            self._pace_s = pace_s
            self._order = sorted(map(self._key, self._begun.values()))
        offset_s = pace_s * self._rounds
        return (due_at + offset_s for due_at in islice(self._order, first, None))

    def _key(self, entry: tuple[float, int]) -> float:
        first_at, tokens = entry
        return first_at + self._pace_s * tokens


def slack_ms(slacks: Iterable[Slack], pace_ms: float, now: float) -> float | None:
    """The slack that four of five requests have or exceed; None without any request."""
    followed = [slack for slack in slacks if len(slack)]
    if not followed:
        return None
    place = int(_QUANTILE * (sum(map(len, followed)) - 1))
    if len(followed) == 1:
        due_at = next(followed[0].due(pace_ms, place))
    else:
        due_at = next(islice(merge(*(slack.due(pace_ms) for slack in followed)), place, None))
    return (due_at - now) * 1e3


class LanePace:
    """Follows every decode, lane by lane, from its first token until it leaves its row."""

    def __init__(self) -> None:
        self._slacks: dict[Lane, Slack] = {"interactive": Slack(), "batch": Slack()}

    def advance(self, *, is_batch_paused: bool) -> None:
        """Count that every request got one token, but for the batch lane's where it paused."""
        self._slacks["interactive"].advance()
        if not is_batch_paused:
            self._slacks["batch"].advance()

    def follow(self, request: Request, first_at: float) -> None:
        """Follow a request from what it has generated by now; its first token came `first_at`."""
        slack = self._slacks[request.lane]
        slack.begin(request.id, first_at=first_at, generated=request.num_output_tokens)

    def leave(self, request: Request) -> None:
        """Follow a request no longer, if it was followed."""
        self._slacks[request.lane].end(request.id)

    def slack_ms(self, limits: Limits, now: float) -> float | None:
        """Return the slack by which a step is paced; None where no pace is set."""
        if limits.pace_tpot_ms is None:
            return None
        # The pace is the interactive lane's alone where the batch lane has a target of its own.
        is_shared = limits.batch_step_target_ms is None
        slacks = self._slacks.values() if is_shared else [self._slacks["interactive"]]
        return slack_ms(slacks, limits.pace_tpot_ms, now)
