"""Measures steps of many sizes before the first request, and lets the pacer start from them.

Sizes are tried upwards until the next would take too long; then all are repeated, one after the
other, so that a slow moment of a shared machine meets each of them once and is outvoted.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from paceline_engine.core.batch import Runner
from paceline_engine.pacing.pacer import Pacer
from paceline_engine.profiling.monotone import monotone
from paceline_engine.profiling.probe_steps import ProbeStep, probe_steps
from paceline_engine.profiling.step_timer import StepTimer
from paceline_wire import MeasuredStep, StepFeatures, StepProfile
from paceline_wire.limits import Capacity

_REPEATS = 3

Milliseconds = Callable[[ProbeStep], float]

_log = logging.getLogger(__name__)


def begin_with_profile(
    pacer: Pacer,
    runner: Runner,
    capacity: Capacity,
    *,
    overlap: bool,
    budget_s: float,
    clock: Callable[[], float],
) -> StepProfile | None:
    """Measure for `budget_s` seconds; None where that is 0, or the pacer has no model."""

    def expected_ms(step: ProbeStep) -> float:
        return pacer.predict_ms(step.features)

    if budget_s <= 0 or pacer.predict_ms(StepFeatures(1, 0, 1, 0)) <= 0:
        return None
    timer = StepTimer(runner, capacity, clock, overlap=overlap)
    started = clock()
    steps = profile(timer, capacity, expected_ms, budget_s=budget_s, clock=clock)
    taken = StepProfile(clock() - started, is_used=pacer.learn_profile(steps), steps=steps)
    _report(taken)
    return taken


def profile(
    timer: StepTimer,
    capacity: Capacity,
    expected_ms: Milliseconds,
    *,
    budget_s: float,
    clock: Callable[[], float],
) -> tuple[MeasuredStep, ...]:
    """Measure what fits into `budget_s` seconds; `expected_ms` need only be right in its form."""
    started = clock()

    def left_ms() -> float:
        return (started + budget_s - clock()) * 1e3

    measured: dict[ProbeStep, list[float]] = {}
    least_ms: list[float] = []
    scale = 1.0
    for step in probe_steps(capacity, expected_ms):
        if not is_affordable([expected_ms(step) * scale, *least_ms], left_ms()):
            break
        first_ms = timer.ms(step)  # algorithms are chosen, code compiled, memory taken
        measured[step] = [took_ms] = [timer.ms(step)]
        # The faster of the two: a stall must not make the next size look too expensive.
        least_ms.append(min(first_ms, took_ms))
        scale = least_ms[-1] / expected_ms(step)
    for _ in range(_REPEATS - 1):
        for step, times in measured.items():
            if left_ms() <= times[0]:
                break
            times.append(timer.ms(step))
    return measured_steps(measured)


def is_affordable(foreseen_ms: Sequence[float], left_ms: float) -> bool:
    """Tell whether the first size, not tried yet, can be measured and all of them repeated."""
    first, *others = foreseen_ms
    return first * (1 + _REPEATS) + sum(others) * (_REPEATS - 1) <= left_ms


def measured_steps(measured: Mapping[ProbeStep, Sequence[float]]) -> tuple[MeasuredStep, ...]:
    """Take the median of each step's repeats (milliseconds), and make them monotone."""
    features = [step.features for step in measured]
    times = monotone(features, [median(repeats) for repeats in measured.values()])
    return tuple(step.measured(ms) for step, ms in zip(features, times, strict=True))


def _report(taken: StepProfile) -> None:
    measured = f"profiled {len(taken.steps)} sizes of steps in {taken.took_s:.2f} s"
    if not taken.is_used:
        too_short = "too few for the step model, PACELINE_ENGINE_PROFILE_S is too short"
        _log.warning("%s: %s", measured, too_short)
        return
    least, most = taken.steps[0], max(taken.steps, key=lambda step: step.wall_ms)
    _log.info(
        "%s: %.2f ms with %d decodes and %d prompt tokens, %.2f ms with %d and %d",
        measured,
        *(least.wall_ms, least.decode, least.prefill),
        *(most.wall_ms, most.decode, most.prefill),
    )
