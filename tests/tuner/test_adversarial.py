"""Whatever a pod says: no exception, no unsafe limit, a reason for holding, and a recovery."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_testing.telemetry import a_fit, a_limits, a_request, a_step, a_telemetry
from paceline_tuner.loop import TuningLoop
from paceline_tuner.service_report import ServiceReport
from paceline_tuner.service_spec import SLA, Range, TuningSpec
from paceline_tuner.service_target import PodTarget, ServiceTarget
from paceline_tuner.telemetry import (
    CapacityValues,
    LimitsAnswer,
    LimitValues,
    Load,
    SketchSlice,
    Telemetry,
)

pytestmark = pytest.mark.slow

PERIOD_S = 5.0
ITL_MS = 300.0
SPEC = TuningSpec(
    sla=SLA(itl_p99_ms=ITL_MS, ttft_p99_ms=2000.0),
    batch_size=Range(2, 48),
    token_budget=Range(100, 1500),
    config_hash="one",
)
Lie = Callable[[dict[str, Any]], None]
WRONG = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, 1e18, 1e-308)
COUNTS = (-(2**40), -1, 0, 10**6, 2**62)


@dataclass
class Liar:
    """A pod that tells the truth but for one lie at a time, and keeps what it is sent."""

    now: float = 1000.0
    seq: int = 0
    output_tokens: int = 1000
    held: LimitValues = field(default_factory=lambda: LimitValues(16, 512, 200.0))
    epoch: int = 3
    lie: Lie | None = None
    bodies: list[Mapping[str, object]] = field(default_factory=list)

    async def get_telemetry(self, pod: PodTarget, since: int) -> Telemetry:
        """Give the last period; there is one pod, and each answer is of its own."""
        del pod, since
        self.now += PERIOD_S
        self.output_tokens += 800
        begin = self.now - PERIOD_S
        fields: dict[str, Any] = {
            "now": self.now,
            "next": self.seq,
            "limits": self._limits(),
            "load": {"running": 8, "waiting": 1, "waiting_tokens": 100}
            | {"output_tokens": self.output_tokens, "running_output_tokens": (4, 9)},
            "model": {},
            "steps": [(self._next(), begin + 0.05 * (i + 1), {}) for i in range(100)],
            "requests": [(self._next(), begin + 1.0 * (i + 1), {}) for i in range(5)],
            "sketches": [SketchSlice("itl_ms", "interactive", begin, 0.01, 0, {196: 800})],
        }
        if self.lie is not None:
            self.lie(fields)
        return a_telemetry(
            fields.pop("now"),
            **fields
            | {
                "load": Load(**fields["load"]),
                "model": a_fit(**fields["model"]),
                "steps": tuple(a_step(seq, at, **more) for seq, at, more in fields["steps"]),
                "requests": tuple(a_request(s, at, **more) for s, at, more in fields["requests"]),
                "sketches": tuple(fields["sketches"]),
            },
        )

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> LimitsAnswer:
        del pod
        self.bodies.append(body)
        json.dumps(dict(body), allow_nan=False)
        known = {name: value for name, value in body.items() if name in self.held.__struct_fields__}
        self.held = msgspec.structs.replace(self.held, **known)
        self.epoch = max(self.epoch, int(str(body["epoch"])))
        return self._limits()

    def _limits(self) -> LimitsAnswer:
        return a_limits(
            requested=self.held, effective=self.held, certified=self.held, epoch=self.epoch
        )

    def _next(self) -> int:
        self.seq += 1
        return self.seq


def _set(name: str, value: object) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        fields[name] = value

    return lie


def _put(name: str, key: str, value: object) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        fields[name][key] = value

    return lie


def _in_records(name: str, key: str, value: object) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        fields[name] = [
            (seq, at, more | ({key: value} if index % 2 else {}))
            for index, (seq, at, more) in enumerate(fields[name])
        ]

    return lie


def _when(name: str, value: float) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        fields[name] = [(seq, value, more) for seq, _, more in fields[name]]

    return lie


def _slice(start_at: float | None, alpha: float, bins: dict[int, int]) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        at = fields["sketches"][0].start_at if start_at is None else start_at
        fields["sketches"] = [SketchSlice("itl_ms", "interactive", at, alpha, 0, bins)]

    return lie


def _zeros(fields: dict[str, Any]) -> None:
    fields["load"] = {"running": 0, "waiting": 0, "waiting_tokens": 0}
    fields["steps"] = [
        (seq, at, {"wall_ms": 0.0, "decode": 0, "running": 0}) for seq, at, _ in fields["steps"]
    ]


def _theta(value: float, place: int) -> Lie:
    def lie(fields: dict[str, Any]) -> None:
        theta = [30.0, 2.0, 0.0, 2.0, 50.0]
        theta[place] = value
        fields["model"]["theta"] = tuple(theta)

    return lie


wrong, counts = st.sampled_from(WRONG), st.sampled_from(COUNTS)
LIES = st.one_of(
    st.builds(_set, st.just("now"), wrong),
    st.builds(_set, st.just("next"), counts),
    st.builds(_set, st.just("ready"), st.just(value=False)),
    st.builds(_theta, wrong, st.integers(0, 4)),
    st.builds(_put, st.just("model"), st.sampled_from(["fast", "q_r", "mape"]), wrong),
    st.builds(_put, st.just("model"), st.sampled_from(["samples", "knee"]), counts),
    st.builds(_put, st.just("model"), st.just("correction"), st.tuples(wrong, wrong)),
    st.builds(_put, st.just("model"), st.just("theta"), st.just((1.0, 2.0))),
    st.builds(
        _put,
        st.just("load"),
        st.sampled_from(
            [
                "running",
                "waiting",
                "waiting_tokens",
                "output_tokens",
                "prompt_tokens",
                "prefix_hits",
                "prefix_queries",
                "preemptions",
            ]
        ),
        counts,
    ),
    st.builds(_put, st.just("load"), st.just("running_output_tokens"), st.tuples(counts, counts)),
    st.builds(
        _in_records,
        st.just("steps"),
        st.sampled_from(["decode", "prefill", "context", "running", "waiting"]),
        counts,
    ),
    st.builds(_in_records, st.just("steps"), st.just("wall_ms"), wrong),
    st.builds(
        _in_records,
        st.just("requests"),
        st.sampled_from(["ttft_ms", "tpot_ms", "itl_max_ms", "queue_ms", "arrived_at"]),
        wrong,
    ),
    st.builds(
        _in_records,
        st.just("requests"),
        st.sampled_from(["prompt_tokens", "cached_tokens", "output_tokens"]),
        counts,
    ),
    st.builds(_when, st.sampled_from(["steps", "requests"]), wrong),
    st.just(_zeros),
    st.builds(
        _slice,
        st.none() | wrong,
        st.just(0.01) | wrong,
        st.dictionaries(st.sampled_from([-5, 0, 200, 32_768, 99_999_999, -(2**62)]), counts),
    ),
    st.builds(
        lambda batch, budget, target: _set(
            "limits",
            a_limits(
                requested=LimitValues(batch, budget, target),
                capacity=CapacityValues(64, 2048, 4096, 16, 4096),
            ),
        ),
        counts,
        counts,
        wrong,
    ),
    st.builds(
        lambda batch, blocks: _set(
            "limits", a_limits(capacity=CapacityValues(batch, 0, blocks, 0, 0))
        ),
        counts,
        counts,
    ),
)


@settings(max_examples=150, deadline=None)
@given(lies=st.lists(st.one_of(st.none(), LIES), min_size=1, max_size=8))
def test_lies_neither_break_nor_mislead_the_tuner(lies: list[Lie | None]) -> None:
    """Any sequence of lies between truths; three truths later it decides as before."""
    asyncio.run(_live_through(lies))


async def _live_through(lies: list[Lie | None]) -> None:
    pod, clock = Liar(), _Clock()
    loop = TuningLoop(pod, clock)
    for lie in [None, None, *lies]:
        pod.lie = lie
        report = await _tick(loop, clock)
        _assert_safe(loop, pod, report)
    pod.lie = None
    truths = [await _tick(loop, clock) for _ in range(3)]
    _assert_safe(loop, pod, truths[-1])
    assert truths[-1].pods[0].error == ""
    assert truths[-1].pods[0].phase != "Frozen"
    assert loop.explain("ns/name", "pod")[-1].chosen is not None


class _Clock:
    now = 5000.0

    def __call__(self) -> float:
        return self.now


async def _tick(loop: TuningLoop, clock: _Clock) -> ServiceReport:
    clock.now += PERIOD_S
    pods = (PodTarget("pod", "http://pod", "token"),)
    return await loop.tick(ServiceTarget("ns/name", SPEC, pods))


def _assert_safe(loop: TuningLoop, pod: Liar, report: ServiceReport) -> None:
    decision = loop.explain("ns/name", "pod")[-1]
    if decision.chosen is None:
        assert report.pods[0].error
        assert decision.reason
    else:
        json.dumps(decision.as_dict(), allow_nan=False)
    for body in pod.bodies:
        if "max_batch_size" in body:
            assert 2 <= int(str(body["max_batch_size"])) <= 48
            assert 100 <= int(str(body["token_budget"])) <= 1500
            assert 0 < float(str(body["step_target_ms"])) <= ITL_MS


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (_put("load", "running", 65), "more requests run"),
        (_put("load", "running_output_tokens", (-1,)), "load holds"),
        (_theta(1e308, 0), "step model holds"),
        (_put("model", "fast", 0.0), "step model holds"),
        (_zeros, "counters went back"),
        (_set("limits", a_limits(capacity=CapacityValues(0, 0, 0, 0, 0))), "limits hold"),
    ],
    ids=["running", "lengths", "theta", "fast", "zeros", "capacity"],
)
async def test_a_lie_is_named(lie: Lie, why: str) -> None:
    """Whoever reads the decision knows what to mend."""
    pod, clock = Liar(), _Clock()
    loop = TuningLoop(pod, clock)
    await _tick(loop, clock)
    pod.lie = lie

    report = await _tick(loop, clock)

    assert why in report.pods[0].error


async def test_a_model_that_claims_a_floor_which_steps_refute_is_not_believed() -> None:
    """Giving a target up on the word of a broken model would let every gap be slow."""
    pod, clock = Liar(), _Clock()
    loop = TuningLoop(pod, clock)
    pod.lie = _theta(5000.0, 0)

    reports = [await _tick(loop, clock) for _ in range(10)]

    assert loop.explain("ns/name", "pod")[-1].obstacle != "TPOTFloor"
    _assert_safe(loop, pod, reports[-1])


async def test_a_clock_that_jumped_ahead_and_back_does_not_stop_the_tuner() -> None:
    """Times of the future must not stay in state as ends of cool-downs."""
    pod, clock = Liar(), _Clock()
    loop = TuningLoop(pod, clock)
    await _tick(loop, clock)
    pod.now = 1e8
    await _tick(loop, clock)
    await _tick(loop, clock)
    pod.now = 1010.0

    for _ in range(3):
        await _tick(loop, clock)

    state = loop.explain("ns/name", "pod")[-1].state
    assert state.at <= pod.now
    assert max(state.changed_at, state.drift.at or 0.0) <= pod.now
    assert state.transition_until <= pod.now + 60.0
