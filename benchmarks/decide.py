"""What a decision costs: one pod's full window, and two hundred pods in one round.

Run `python benchmarks/decide.py` from the repository's root. CPU time of one core, in milliseconds.
"""

import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "operator"), str(ROOT / "tests")]

from paceline_testing.telemetry import a_request, a_step, a_telemetry  # noqa: E402 - as above
from paceline_tuner.decide import decide  # noqa: E402 - as above
from paceline_tuner.pod_state import PodState  # noqa: E402 - as above
from paceline_tuner.sample import SAMPLE, sampled_requests, sampled_steps  # noqa: E402 - as above
from paceline_tuner.service_spec import SLA, TuningSpec  # noqa: E402 - as above
from paceline_tuner.telemetry import (  # noqa: E402 - as above
    Load,
    RequestRecord,
    SketchSlice,
    Step,
    Telemetry,
    decode_telemetry,
)
from paceline_tuner.window import Window  # noqa: E402 - as above

PERIOD_S = 5.0
WINDOW_S = 60.0
STEPS_PER_S = 50
REQUESTS_PER_S = 5000 / WINDOW_S
SPEC = TuningSpec(sla=SLA(ttft_p99_ms=500.0, tpot_p99_ms=50.0, itl_p99_ms=100.0), config_hash="one")
PODS = 200
PERIODS = 200


@dataclass
class Source:
    """A busy pod: fifty steps and eighty-three requests a second."""

    seed: int
    now: float = 1000.0
    seq: int = 0
    slices: deque[SketchSlice] = field(default_factory=lambda: deque(maxlen=48))

    def __post_init__(self) -> None:
        """Draw from a seed of its own."""
        self.random = random.Random(self.seed)

    def answer(self) -> bytes:
        """Return one period as a sidecar sends it: a sample, and the slices that grew."""
        told = self._told()
        sampled = msgspec.structs.replace(
            told,
            steps=(),
            requests=(),
            sketches=told.sketches[-4:],
            step_rows=tuple(sampled_steps(told.steps, SAMPLE)),
            request_rows=tuple(sampled_requests(told.requests, SAMPLE)),
        )
        return msgspec.json.encode(sampled)

    def _told(self) -> Telemetry:
        begin, self.now = self.now, self.now + PERIOD_S
        return a_telemetry(
            self.now,
            load=Load(
                running=60,
                waiting=4,
                waiting_tokens=900,
                output_tokens=self.seq * 40,
                prompt_tokens=self.seq * 200,
                running_output_tokens=tuple(self.random.randint(1, 300) for _ in range(60)),
            ),
            steps=tuple(self._steps(begin)),
            requests=tuple(self._requests(begin)),
            sketches=self._sketches(begin),
        )

    def _steps(self, begin: float) -> Iterator[Step]:
        for i in range(int(STEPS_PER_S * PERIOD_S)):
            self.seq += 1
            wall_ms = self.random.lognormvariate(3.0, 0.1)
            yield a_step(self.seq, begin + (i + 1) / STEPS_PER_S, wall_ms=wall_ms, decode=60)

    def _requests(self, begin: float) -> Iterator[RequestRecord]:
        for i in range(int(REQUESTS_PER_S * PERIOD_S) + 1):
            self.seq += 1
            yield a_request(
                self.seq,
                min(begin + (i + 1) / REQUESTS_PER_S, self.now),
                ttft_ms=self.random.lognormvariate(5.5, 0.4),
                tpot_ms=self.random.lognormvariate(3.3, 0.2),
                prompt_tokens=self.random.randint(50, 800),
                output_tokens=self.random.randint(5, 300),
            )

    def _sketches(self, begin: float) -> tuple[SketchSlice, ...]:
        """Two minutes of both lanes; only the newest slices are new."""
        for lane in ("interactive", "batch"):
            self.slices.append(SketchSlice("itl_ms", lane, begin, 0.01, 0, self._bins()))
        return tuple(self.slices)

    def _bins(self) -> dict[int, int]:
        return {index: self.random.randint(0, 40) for index in range(130, 260)}


@dataclass
class Pod:
    """One pod with a full window, as the operator keeps it."""

    source: Source
    window: Window
    state: PodState

    @classmethod
    def full(cls, seed: int) -> "Pod":
        """Run for a little more than one window."""
        pod = cls(Source(seed), Window(SAMPLE), PodState())
        for _ in range(int(WINDOW_S / PERIOD_S) + 3):
            pod.period(pod.source.answer())
        return pod

    def period(self, answer: bytes) -> tuple[float, float, float]:
        """Take in one answer and decide: milliseconds to read, to gather, to decide."""
        began = time.process_time()
        self.window.add(decode_telemetry(answer))
        added = time.process_time()
        evidence = self.window.evidence(WINDOW_S)
        assert evidence is not None
        gathered = time.process_time()
        self.state = decide(SPEC, "pod", evidence, self.state, evidence.now).acknowledged_state
        decided = time.process_time()
        return (added - began) * 1e3, (gathered - added) * 1e3, (decided - gathered) * 1e3


def main() -> None:
    """Print one line for one pod, and one for two hundred."""
    pod = Pod.full(1)
    parts = [pod.period(pod.source.answer()) for _ in range(PERIODS)]
    for name, values in zip(("read", "gather", "decide"), zip(*parts, strict=True), strict=True):
        print(f"{name:7} median {statistics.median(values):.2f} ms, worst {max(values):.2f} ms")
    whole = [sum(part) for part in parts]
    print(f"{'all':7} median {statistics.median(whole):.2f} ms, worst {max(whole):.2f} ms")
    pods = [Pod.full(seed) for seed in range(PODS)]
    answers = [pod.source.answer() for pod in pods]
    took = [pod.period(answer) for pod, answer in zip(pods, answers, strict=True)]
    deciding, whole_ms = sum(part[-1] for part in took), sum(sum(part) for part in took)
    print(
        f"{PODS} pods decided in {deciding:.0f} ms of CPU, {whole_ms:.0f} ms with their telemetry"
    )
    evidence = pods[0].window.evidence(WINDOW_S)
    assert evidence is not None
    print(f"a window holds {len(evidence.steps)} steps and {len(evidence.requests)} requests")


if __name__ == "__main__":
    main()
