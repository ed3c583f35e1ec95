"""Window: what a pod reported lately, read as one frozen `Evidence`."""

import bisect
import math
from collections import deque
from dataclasses import dataclass, replace
from operator import attrgetter

from paceline_tuner.latency_sketch import LatencySketch
from paceline_tuner.telemetry import (
    EngineInfo,
    LimitsAnswer,
    Load,
    ModelFit,
    RequestRecord,
    SketchSlice,
    Step,
    Telemetry,
)
from paceline_tuner.telemetry_validation import (
    is_readable,
    is_valid_request,
    is_valid_slice,
    is_valid_step,
    trouble_of,
)

_MAX_STEPS = 3000
_MAX_REQUESTS = 5000
REACT_S = 10.0
"""Gross breaches are looked for in the last seconds, so many."""
SLICE_S = 5.0
PROGRESS_S = 1.0
_step_at = attrgetter("at")
_finished_at = attrgetter("finished_at")


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
    steps: tuple[Step, ...]
    requests: tuple[RequestRecord, ...]
    """Finished in the window, oldest first."""
    slices: tuple[SketchSlice, ...]
    """Inter-token gaps in the window."""
    progress: tuple[tuple[float, int], ...] = ()
    """One entry a second: when, and the tokens of a sequence that ran all the time."""

    def made(self, since: float) -> float:
        """Count the tokens that one sequence made since then, one by each step that decoded."""
        if not self.progress:
            return math.inf
        times = [at for at, _ in self.progress]
        counts = [count for _, count in self.progress]
        index = bisect.bisect_right(times, since)
        if index == 0:
            return float(counts[-1] - counts[0])
        if index == len(times):
            return 0.0
        share = (since - times[index - 1]) / max(times[index] - times[index - 1], 1e-9)
        before = counts[index - 1] + share * (counts[index] - counts[index - 1])
        return counts[-1] - before

    def gaps(self, since: float = -math.inf) -> LatencySketch:
        """Merge the inter-token gaps of slices that began after `since`."""
        return LatencySketch(piece for piece in self.slices if piece.start_at >= since)

    def since(self, begin: float) -> "Evidence":
        """Narrow to the steps and the ended requests since `begin`."""
        if begin <= self.now - self.window_s:
            return self
        first = bisect.bisect_left(self.requests, begin, key=_finished_at)
        return replace(
            self,
            window_s=self.now - begin,
            steps=self.steps[bisect.bisect_left(self.steps, begin, key=_step_at) :],
            requests=self.requests[first:],
        )

    def finished(self, since: float) -> tuple[RequestRecord, ...]:
        """List the requests that arrived and ended after `since`."""
        first = bisect.bisect_left(self.requests, since, key=_finished_at)
        return tuple(r for r in self.requests[first:] if r.arrived_at >= since)


class Window:
    """Gathers one pod's telemetry. Starts anew with a new engine, or a clock that went back."""

    def __init__(self, max_steps: int = _MAX_STEPS) -> None:
        """Hold nothing yet; later the newest `max_steps` steps."""
        self._last: Telemetry | None = None
        self._steps: deque[Step] = deque(maxlen=max_steps)
        self._requests: deque[RequestRecord] = deque(maxlen=_MAX_REQUESTS)
        self._slices: dict[tuple[str, str, float], SketchSlice] = {}
        self._progress: deque[tuple[float, int]] = deque()
        self._made = 0
        self.trouble = "no telemetry yet"
        """Why no decision can be made from the last answer; empty when one can."""

    @property
    def since(self) -> int:
        """Where to resume reading."""
        return self._last.next if self._last is not None else 0

    def add(self, telemetry: Telemetry) -> None:
        """Take in one answer."""
        self.trouble = trouble_of(telemetry, self._last)
        if not is_readable(telemetry):
            return
        if self._must_restart(telemetry):
            self._steps.clear()
            self._requests.clear()
            self._slices.clear()
            self._progress.clear()
        self._last = telemetry
        self._add_steps(telemetry)
        self._add_requests(telemetry)
        for piece in telemetry.sketches:
            key = piece.metric, piece.lane, piece.start_at
            # Each answer brings two minutes of slices again; only the newest has grown.
            if self._slices.get(key) != piece and is_valid_slice(piece, telemetry.now):
                self._slices[key] = piece

    def _add_steps(self, telemetry: Telemetry) -> None:
        """Take the valid steps in the order in which they ran; older ones came out of turn."""
        newest = self._steps[-1].at if self._steps else -math.inf
        for step in telemetry.steps:
            if step.at >= newest and is_valid_step(step, telemetry.now):
                newest = step.at
                self._steps.append(step)
                self._count(step)

    def _add_requests(self, telemetry: Telemetry) -> None:
        newest = self._requests[-1].finished_at if self._requests else -math.inf
        for record in telemetry.requests:
            if record.finished_at >= newest and is_valid_request(record, telemetry.now):
                newest = record.finished_at
                self._requests.append(record)

    def evidence(self, window_s: float) -> Evidence | None:
        """Give all that a decision may use, or None while there is `trouble`."""
        last = self._last
        if self.trouble or last is None or last.limits is None:
            return None
        if last.load is None or last.model is None:
            return None
        begin = last.now - window_s
        self._forget(last.now - max(window_s, 60.0) - SLICE_S)
        steps, requests = tuple(self._steps), tuple(self._requests)
        return Evidence(
            now=last.now,
            instance=last.instance,
            ready=last.ready,
            limits=last.limits,
            load=last.load,
            model=last.model,
            info=last.info or EngineInfo(),
            window_s=window_s,
            steps=steps[bisect.bisect_left(steps, begin, key=_step_at) :],
            requests=requests[bisect.bisect_left(requests, begin, key=_finished_at) :],
            slices=tuple(
                piece
                for (metric, _, start_at), piece in self._slices.items()
                if metric == "itl_ms" and start_at + SLICE_S > begin
            ),
            progress=(*self._progress, (last.now, self._made)),
        )

    def _count(self, step: Step) -> None:
        """Keep how far steps brought sequences: steps beyond the newest thousands are dropped."""
        self._made += step.decode > 0
        if not self._progress or step.at >= self._progress[-1][0] + PROGRESS_S:
            self._progress.append((step.at, self._made))

    def _must_restart(self, telemetry: Telemetry) -> bool:
        last = self._last
        return last is not None and (
            telemetry.instance != last.instance or not telemetry.now >= last.now
        )

    def _forget(self, before: float) -> None:
        while self._steps and self._steps[0].at < before:
            self._steps.popleft()
        while self._requests and self._requests[0].finished_at < before:
            self._requests.popleft()
        while self._progress and self._progress[0][0] < before:
            self._progress.popleft()
        for key in [key for key in self._slices if key[2] < before]:
            del self._slices[key]
