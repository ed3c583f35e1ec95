"""Records a pod's telemetry, in the same way for a real and a simulated pod."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from paceline_tuner.pods import PodClient
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import (
    EngineInfo,
    LimitsAnswer,
    ModelFit,
    RequestRecord,
    SketchSlice,
    Step,
    Telemetry,
)


class LostError(Exception):
    """The pod overwrote records before they were read."""


@dataclass(frozen=True, slots=True)
class Held:
    """The pod's limits and step model at one reading."""

    at: float
    """The pod's clock, as all times here."""
    batch: int
    budget: int
    target_ms: float | None
    q_r: float


@dataclass(slots=True)
class Recording:
    """Everything since `begun_at`."""

    begun_at: float
    steps: list[Step] = field(default_factory=list)
    requests: list[RequestRecord] = field(default_factory=list)
    slices: dict[float, SketchSlice] = field(default_factory=dict)
    """Inter-token gaps, by the start of their five seconds."""
    held: list[Held] = field(default_factory=list)
    model: ModelFit | None = None
    """As last told."""
    info: EngineInfo | None = None
    limits: LimitsAnswer | None = None

    def add(self, answer: Telemetry) -> None:
        """Add one answer. Raises LostError."""
        if answer.lost:
            raise LostError(f"{answer.lost} records were overwritten before they were read")
        self.steps.extend(answer.steps)
        self.requests.extend(answer.requests)
        self.slices.update(
            {piece.start_at: piece for piece in answer.sketches if piece.metric == "itl_ms"}
        )
        self.model, self.info = answer.model or self.model, answer.info or self.info
        self.limits = answer.limits or self.limits
        if answer.limits is not None:
            held, model = answer.limits.requested, answer.model
            q_r = model.q_r if model is not None else 1.0
            self.held.append(
                Held(answer.now, held.max_batch_size, held.token_budget, held.step_target_ms, q_r)
            )


class WatchedPod:
    """PodClient that records what passes, and hides what happened before it began.

    A tuning loop that reads through it sees a fresh pod: of one that has served before, it would
    read the load of then.
    """

    def __init__(self, inner: PodClient) -> None:
        """Watch through `inner`; call `begin` first."""
        self._inner = inner
        self._first = 0
        self._read = 0
        self.recording = Recording(-math.inf)

    @property
    def next(self) -> int:
        """The record number from which to read on."""
        return self._read

    async def begin(self, pod: PodTarget) -> None:
        """Forget everything until now."""
        answer = await self._inner.get_telemetry(pod, self._read)
        self._first = self._read = answer.next
        self.recording = Recording(answer.now)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Read on; each record is kept once, whoever asks. Raises PodError, LostError."""
        since = max(since, self._first)
        answer = await self._inner.get_telemetry(pod, since)
        begun_at = self.recording.begun_at
        sketches = tuple(piece for piece in answer.sketches if piece.start_at >= begun_at)
        answer = msgspec.structs.replace(answer, sketches=sketches)
        if since != self._read:
            raise LostError(f"read from {since}, but {self._read} comes next: two readers")
        self._read = answer.next
        self.recording.add(answer)
        return answer

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        """Pass the change on."""
        return await self._inner.patch_limits(pod, body)
