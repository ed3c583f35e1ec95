"""How the two lanes share prefill tokens, over the steps and within one.

The lane that has been served fewer tokens, measured against its share, goes next. The interactive
lane may save up some of its share, the batch lane none: a burst of interactive requests is served
at once, with nothing for the batch lane until what was saved is spent.

Within a step the batch lane gets at most its share of the tokens while interactive prompts are
computed, and half of it while interactive requests decode: what is left stays unspent, for the
longer a step is, the later comes the first token of whoever is in it or arrives meanwhile. Where
no interactive request runs or waits, batch prompts get all there is.

A lane whose first request does not fit (its prompt needs blocks that are held) lets the other lane
pass, but not forever: after `MAX_OVERTAKEN` admissions the other waits until that request is in.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from paceline_engine.scheduling.request_table import LANES, WaitingLane
from paceline_wire.limits import Lane, Limits

MAX_OVERTAKEN = 32
MIN_SHARE = 0.01
"""A share below it counts as this much, or a lane with share 0 would starve."""
BESIDE_DECODES = 0.4
"""The part of its share that the batch lane gets in a step beside interactive decodes.

Simulated on an H100 (8B, steps of 50 ms, 1,000 batch requests waiting), 1 moved the p99 of
interactive first tokens by 18 to 25 %, 0.5 by 15 to 17 %, at the same batch throughput; with
the step model as it is now 0.4 moves it by 2 to 16 % where 0.5 moved it by up to 19 %, at a tenth
less batch throughput.
"""
MAX_CREDIT = 32_768.0
"""Tokens by share that the interactive lane may save up: about a second of a fast GPU."""


@dataclass(frozen=True, slots=True)
class Interactive:
    """What the interactive lane is about to do in a step."""

    wanted: int
    """Known tokens of its prompts, begun or waiting."""
    is_running: bool
    """Whether any of its requests holds a row."""


class FairShare:
    """Counts what each lane has been served, over the steps."""

    def __init__(self) -> None:
        self._served: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self.active: set[Lane] = set()
        """Lanes that wanted prompt tokens in the step before."""
        self._overtaken: dict[Lane, int] = dict.fromkeys(LANES, 0)

    def begin(
        self, wanting: Iterable[Lane], tokens: int, limits: Limits, interactive: Interactive
    ) -> "StepShare":
        """Start a step that may prefill `tokens` of the lanes that want some."""
        wanting = set(wanting)
        busy = [self._served[lane] for lane in self.active & wanting]
        for lane in wanting - self.active:
            credit = MAX_CREDIT if lane == "interactive" else 0.0
            self._served[lane] = max([self._served[lane], *(served - credit for served in busy)])
        self.active = wanting
        return StepShare(self._served, wanting, tokens, limits, interactive)

    def admitted(self, lane: Lane, blocked: Iterable[Lane]) -> bool:
        """Count that a request of `lane` overtook the first ones of the `blocked` lanes.

        Return whether the other lane had to wait until it was in.
        """
        was_aged = self._overtaken[lane] >= MAX_OVERTAKEN
        self._overtaken[lane] = 0
        for other in blocked:
            self._overtaken[other] += 1
        return was_aged

    def may_admit(self, lane: Lane, waiting: Mapping[Lane, WaitingLane]) -> bool:
        """Tell whether no other lane has been overtaken too often."""
        return not any(
            self._overtaken[other] >= MAX_OVERTAKEN and len(waiting[other]) > 0
            for other in LANES
            if other != lane
        )


class StepShare:
    """The prefill tokens of one step."""

    def __init__(
        self,
        served: dict[Lane, float],
        wanting: Collection[Lane],
        tokens: int,
        limits: Limits,
        interactive: Interactive,
    ) -> None:
        self._served = served
        self._open = set(wanting)
        self._tokens = tokens
        self._shares: dict[Lane, float] = {
            "interactive": max(limits.interactive_share, MIN_SHARE),
            "batch": max(limits.batch_share, MIN_SHARE),
        }
        self._spent: dict[Lane, int] = dict.fromkeys(LANES, 0)
        self._unfinished: dict[Lane, int] = dict.fromkeys(LANES, 0)
        share = tokens * self._shares["batch"] / sum(self._shares.values())
        self._batch_alone = math.ceil(share * BESIDE_DECODES) if interactive.is_running else tokens
        self._batch_most = self._batch_alone
        if "interactive" in self._open:
            self._batch_most = math.ceil(share)
            is_burst = interactive.wanted > tokens - self._batch_most
            if is_burst and served["interactive"] < served["batch"]:
                self._batch_most = 0

    def left(self, lane: Lane) -> int:
        """Tokens that the lane may still have."""
        if lane == "interactive":
            return self._tokens
        # Its part shrinks where the other lane takes nothing; tokens already given stay given.
        return max(0, min(self._tokens, self._batch_most - self._spent["batch"]))

    def next_lane(self) -> Lane | None:
        """Pick the lane that is furthest below its share, of those that may have more."""
        lanes: list[Lane] = [lane for lane in LANES if lane in self._open and self.left(lane) > 0]
        if not lanes:
            return None
        return min(lanes, key=self._served.__getitem__)

    def charge(self, lane: Lane, tokens: int, *, finishes: bool = True) -> None:
        """Count tokens given to a prompt of the lane."""
        self._tokens -= tokens
        self._spent[lane] += tokens
        self._served[lane] += tokens / self._shares[lane]
        self._unfinished[lane] += not finishes

    def close(self, lane: Lane) -> None:
        """Note that the lane has nothing more to compute."""
        self._open.remove(lane)
        if lane == "interactive" and not self._spent["interactive"]:
            self._batch_most = self._batch_alone

    def num_unfinished(self, lane: Lane) -> int:
        """Count the prompts that this step leaves unfinished and that delay the lane's next one.

        Prompts of the batch lane delay only their own lane.
        """
        others = self._unfinished["interactive"] if lane == "batch" else 0
        return self._unfinished[lane] + others
