"""Published rules that set limits from outside, each on the same telemetry every five seconds.

AIMD        both limits down by a factor on a p99 breach of pace, up by a constant otherwise.
gradient2   Netflix/concurrency-limits, Gradient2Limit: the limit follows the ratio of a long-term
            to a short-term round trip, here of milliseconds per token, which lengths do not move.
TensorRT    NVIDIA/TensorRT-LLM's dynamic batch tuner: max tokens from the mean lengths of the
            last 128 requests, 2^ceil(log2(N * ISL / OSL + N)).
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

from paceline_tuner.pods import PodClient
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from tune_report.arms.arm import Control, MakeControl, Verdict
from tune_report.arms.reading import Reader, Reading, change
from tune_report.settings import ServingSetting


class ControlRule(Protocol):
    """From one pod's reading to its limits: max batch size and token budget."""

    def limits(self, reading: Reading, sla: SLA) -> tuple[int, int]:
        """Decide."""
        ...


class RuleControl:
    """Applies one rule, with a memory of its own, to each pod."""

    def __init__(self, client: PodClient, make: Callable[[], ControlRule]) -> None:
        """Know no pod yet."""
        self._client = client
        self._make = make
        self._pods: dict[str, tuple[Reader, ControlRule]] = {}

    async def tick(self, pods: tuple[PodTarget, ...], sla: SLA) -> Verdict:
        """Read, decide, change; leave alone what cannot be read."""
        for pod in pods:
            reader, rule = self._pods.setdefault(pod.name, (Reader(), self._make()))
            reading = await reader.read(self._client, pod)
            if reading is not None:
                await change(self._client, pod, reading, *rule.limits(reading, sla))
        return ""


def by(make: Callable[[], ControlRule]) -> MakeControl:
    """A control that applies the rule."""

    def control(client: PodClient, clock: Callable[[], float], setting: ServingSetting) -> Control:  # noqa: ARG001 - rules need neither
        return RuleControl(client, make)

    return control


class Aimd:
    """Additive increase, multiplicative decrease, of both limits."""

    _BATCH_DOWN, _BUDGET_DOWN = 0.9, 0.7
    _BATCH_UP, _BUDGET_UP = 4, 64

    def limits(self, reading: Reading, sla: SLA) -> tuple[int, int]:
        """Down on a breach, else up by a little."""
        if reading.is_slow(sla):
            batch = max(8, int(reading.batch * self._BATCH_DOWN))
            return batch, max(256, int(reading.budget * self._BUDGET_DOWN))
        return reading.batch + self._BATCH_UP, reading.budget + self._BUDGET_UP


class Gradient2:
    """The batch size alone; the token budget stays."""

    _TOLERANCE, _SMOOTHING, _QUEUE = 1.5, 0.2, 4
    _LONG, _WARM_UP, _LEAST = 600, 10, 8

    def __init__(self) -> None:
        """Start with no history."""
        self._long = 0.0
        self._count = 0
        self._limit = 0.0

    def limits(self, reading: Reading, sla: SLA) -> tuple[int, int]:  # noqa: ARG002 - it knows no SLA
        """Follow long over short."""
        times = [r.tpot_ms for r in reading.newest if r.tpot_ms is not None]
        if not times:
            return reading.batch, reading.budget
        self._limit = self._limit or float(reading.batch)
        short = sum(times) / len(times)
        self._remember(short)
        if self._long / short > 2:
            self._long *= 0.95
        if reading.running < self._limit / 2:
            return reading.batch, reading.budget
        gradient = max(0.5, min(1.0, self._TOLERANCE * self._long / short))
        wanted = self._limit * gradient + self._QUEUE
        self._limit += self._SMOOTHING * (wanted - self._limit)
        self._limit = max(self._LEAST, min(self._limit, reading.max_batch))
        return int(self._limit), reading.budget

    def _remember(self, short: float) -> None:
        """An exponential mean that begins as a plain one."""
        self._count += 1
        if self._count <= self._WARM_UP:
            self._long += (short - self._long) / self._count
        else:
            self._long += (short - self._long) * 2 / (self._LONG + 1)


class TensorRt:
    """The token budget from lengths alone; the batch size stays."""

    _REQUESTS = 128

    def __init__(self) -> None:
        """Know no lengths."""
        self._lengths: deque[tuple[int, int]] = deque(maxlen=self._REQUESTS)

    def limits(self, reading: Reading, sla: SLA) -> tuple[int, int]:  # noqa: ARG002 - it knows no SLA
        """The next power of two above what a full batch turns over."""
        self._lengths.extend(
            (r.prompt_tokens, r.output_tokens) for r in reading.newest if r.output_tokens > 0
        )
        if not self._lengths:
            return reading.batch, reading.budget
        prompt = sum(p for p, _ in self._lengths)
        output = sum(o for _, o in self._lengths)
        wanted = reading.batch * prompt / output + reading.batch
        return reading.batch, 2 ** math.ceil(math.log2(wanted))
