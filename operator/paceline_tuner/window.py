"""Window: what a pod reported lately, read as one frozen `Evidence`."""

import math
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec
from msgspec import UNSET

from paceline_tuner.latency_sketch import LatencySketch, SliceCounts
from paceline_tuner.records import (
    READ_REQUESTS,
    READ_STEPS,
    REQUESTS,
    STEPS,
    Kept,
    column,
    since,
)
from paceline_tuner.sample import all_alike, sampled_requests, sampled_steps
from paceline_tuner.telemetry import (
    EngineInfo,
    LimitsAnswer,
    Load,
    ModelFit,
    RequestRecord,
    Step,
    Telemetry,
)
from paceline_tuner.telemetry_validation import (
    is_readable,
    is_valid_request,
    is_valid_slice,
    is_valid_step,
    trouble_of,
    valid_requests,
    valid_steps,
)

REACT_S = 10.0
"""Length of the recent period that is checked for gross breaches."""
SLICE_S = 5.0


@dataclass(frozen=True, slots=True)
class Counted:
    """The tokens that an engine has counted since its start, at one moment."""

    at: float
    """The pod's own clock."""
    output_tokens: int
    prompt_tokens: int
    """Of the prompts that were begun, each counted once: cached tokens too."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One pod, as one decision sees it. Times are the pod's own clock."""

    now: float
    instance: str
    ready: bool
    limits: LimitsAnswer
    load: Load
    model: ModelFit
    info: EngineInfo
    window_s: float
    steps: Sequence[Step]
    """Ran in the window, oldest first; each may stand for several."""
    requests: Sequence[RequestRecord]
    """Finished in the window, oldest first; each may stand for several."""
    slices: tuple[SliceCounts, ...]
    """Inter-token gaps in the window."""
    counted: tuple[Counted, Counted] | None = None
    """The engine's counters when the window began, and now; None until they were read twice."""

    @property
    def num_requests(self) -> int:
        """How many requests finished in the window."""
        return int(column(self.requests, "weight").sum())

    @property
    def made(self) -> int:
        """Count the tokens that one sequence made in the window, one by each step that decoded."""
        return int(column(self.steps, "num_decodes").sum())

    def gaps(self, since: float = -math.inf) -> LatencySketch:
        """Merge the inter-token gaps of slices that began after `since`."""
        return LatencySketch(piece for piece in self.slices if piece.start_at >= since)

    def since(self, begin: float) -> "Evidence":
        """Narrow to the steps and the ended requests since `begin`."""
        if begin <= self.now - self.window_s:
            return self
        return replace(
            self,
            window_s=self.now - begin,
            steps=since(self.steps, "at", begin),
            requests=since(self.requests, "finished_at", begin),
        )

    def finished(self, begin: float) -> tuple[RequestRecord, ...]:
        """List the requests that arrived and ended after `begin`."""
        ended = since(self.requests, "finished_at", begin)
        return tuple(record for record in ended if record.arrived_at >= begin)


class Window:
    """Gathers one pod's telemetry. Starts anew with a new engine, or a clock that went back."""

    __slots__ = (
        *("_complete_until", "_counted", "_last", "_requests", "_sample", "_slices", "_steps"),
        "trouble",
    )

    def __init__(self, sample: int | None = None) -> None:
        """Hold nothing yet.

        With `sample`, keep about so many steps and requests of each 5 s, which stand for the rest,
        and of them what decisions read.
        """
        self._sample = sample
        self._last: Telemetry | None = None
        self._steps = Kept(STEPS if sample is None else READ_STEPS)
        self._requests = Kept(REQUESTS if sample is None else READ_REQUESTS)
        self._slices: dict[tuple[str, float], SliceCounts] = {}
        self._complete_until = -math.inf
        self._counted: deque[Counted] = deque()
        self.trouble = "no telemetry yet"
        """Why no decision can be made from the last answer; empty when one can."""

    @property
    def since(self) -> int:
        """Where to resume reading."""
        return self._last.next if self._last is not None else 0

    def add(
        self,
        telemetry: Telemetry,
        kind_of: Callable[[RequestRecord], Hashable] = all_alike,
    ) -> None:
        """Take in one answer. Of its requests, those of one kind alone may stand for another."""
        self.trouble = trouble_of(telemetry, self._last)
        if not is_readable(telemetry):
            return
        if self._must_restart(telemetry):
            self._steps.clear()
            self._requests.clear()
            self._slices.clear()
            self._complete_until = -math.inf
            self._counted.clear()
        self._last = _without_records(telemetry)
        self._count(telemetry)
        rows = telemetry.step_rows
        self._add_steps(telemetry.steps if rows is UNSET else rows, telemetry.now)
        self._add_requests(telemetry.request_rows or telemetry.requests, telemetry.now, kind_of)
        self._add_slices(telemetry)

    def _count(self, telemetry: Telemetry) -> None:
        """Keep the counters of an answer that can be believed."""
        load, counted = telemetry.load, self._counted
        if self.trouble or load is None or (counted and telemetry.now <= counted[-1].at):
            return
        counted.append(Counted(telemetry.now, load.output_tokens, load.prefix_queries))

    def _counted_since(self, begin: float) -> tuple[Counted, Counted] | None:
        """Give the counters at about `begin` and the newest, and forget older ones."""
        counted = self._counted
        while len(counted) > 2 and counted[1].at <= begin:  # noqa: PLR2004 - a rate needs two
            counted.popleft()
        return (counted[0], counted[-1]) if len(counted) > 1 else None

    def _add_steps(self, steps: Sequence[Step], now: float) -> None:
        """Take the valid steps in the order in which they ran; older ones came out of turn."""
        kept, newest = self._steps, self._steps.newest_at
        matrix = valid_steps(steps, newest, now)
        if matrix is None:
            valid = []
            for step in steps:
                if step.at >= newest and is_valid_step(step, now):
                    newest = step.at
                    valid.append(step)
            steps = valid
        if steps:
            rows = sampled_steps(steps, self._sample)
            if matrix is None or rows != [*steps]:
                matrix = STEPS.matrix(rows)
            kept.add(rows, matrix, steps[-1].at)

    def _add_requests(
        self,
        requests: Sequence[RequestRecord],
        now: float,
        kind_of: Callable[[RequestRecord], Hashable],
    ) -> None:
        kept, newest = self._requests, self._requests.newest_at
        matrix = valid_requests(requests, newest, now)
        if matrix is None:
            valid = []
            for record in requests:
                if record.finished_at >= newest and is_valid_request(record, now):
                    newest = record.finished_at
                    valid.append(record)
            requests = valid
        if requests:
            rows = sampled_requests(requests, self._sample, kind_of)
            if matrix is None or rows != [*requests]:
                matrix = REQUESTS.matrix(rows)
            kept.add(rows, matrix, requests[-1].finished_at)

    def _add_slices(self, telemetry: Telemetry) -> None:
        """Take what has grown: an answer may bring two minutes of slices again."""
        for piece in telemetry.sketches:
            is_new = piece.start_at >= self._complete_until
            if is_new and piece.metric == "itl_ms" and is_valid_slice(piece, telemetry.now):
                self._slices[piece.lane, piece.start_at] = SliceCounts(piece)
        # Slices that had ended by now are complete.
        self._complete_until = max(self._complete_until, telemetry.now - SLICE_S)

    def evidence(self, window_s: float) -> Evidence | None:
        """Give all that a decision may use, or None while there is `trouble`."""
        last = self._last
        if self.trouble or last is None or last.limits is None:
            return None
        if last.load is None or last.model is None:
            return None
        begin = last.now - window_s
        self._forget(last.now - max(window_s, 60.0) - SLICE_S)
        return Evidence(
            now=last.now,
            instance=last.instance,
            ready=last.ready,
            limits=last.limits,
            load=last.load,
            model=last.model,
            info=last.info or EngineInfo(),
            window_s=window_s,
            steps=since(self._steps.read(), "at", begin),
            requests=since(self._requests.read(), "finished_at", begin),
            slices=tuple(
                piece for (_, start_at), piece in self._slices.items() if start_at + SLICE_S > begin
            ),
            counted=self._counted_since(begin),
        )

    def _must_restart(self, telemetry: Telemetry) -> bool:
        last = self._last
        return last is not None and (
            telemetry.instance != last.instance or not telemetry.now >= last.now
        )

    def _forget(self, before: float) -> None:
        self._steps.forget(before)
        self._requests.forget(before)
        for key in [key for key in self._slices if key[1] < before]:
            del self._slices[key]


def _without_records(telemetry: Telemetry) -> Telemetry:
    info = None if telemetry.info is None else _one_of_its_kind(telemetry.info)
    return msgspec.structs.replace(
        telemetry, steps=(), requests=(), sketches=(), step_rows=UNSET, request_rows=(), info=info
    )


@lru_cache(maxsize=4096)
def _one_of_its_kind(info: EngineInfo) -> EngineInfo:
    """Share one copy among all pods of a kind."""
    return info
