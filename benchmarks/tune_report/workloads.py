"""Workloads: requests and arrivals, disturbances meanwhile, and the SLA.

A load of 1.0 is the most that the best fixed limits of the grid serve at 99 % attainment, steadily,
of the workload's mix on its device (`oracle.capacity_rps`); it is measured, not declared.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from pathlib import Path

import numpy as np

from paceline_sim.hardware import Disturbance
from paceline_sim.requests import Requests
from paceline_tuner.service_spec import SLA
from tune_report import traces
from tune_report.arrivals import Rate, arrivals, constant, pieces, wave
from tune_report.mixes import (
    AGENTS,
    CACHED,
    CODE,
    HEAVY_TAIL,
    LONG,
    LONG_30,
    LONG_60,
    REASONING,
    VERY_LONG,
    Mix,
)
from tune_report.settings import (
    A100_ITL,
    A100_LONG_ITL,
    CPU_ITL,
    H100_70B_ITL,
    H100_70B_LONG_ITL,
    H100_ITL,
    H100_LONG_ITL,
    H100_LONG_TPOT,
    H100_TPOT,
    PUBLISHED_ITL,
    ServingSetting,
)

DURATION_S = 480.0
LONG_LOADS = (0.6, 0.95, 1.2)
SWEEP = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3)


@dataclass(frozen=True, slots=True)
class PodPart:
    """One pod's share of a workload; its requests' times count from the pod's own start."""

    start_s: float
    requests: Requests


Make = Callable[[np.random.Generator, float], tuple[PodPart, ...]]
"""From randomness and the capacity in requests per second."""


@dataclass(frozen=True, slots=True)
class ReportWorkload:
    """One named load on one setting."""

    name: str
    setting: ServingSetting
    make: Make
    mix: Mix
    """What a load of 1.0 is measured with."""
    duration_s: float = DURATION_S
    """Arrivals end here; what has arrived is served to its end."""
    disturbances: tuple[Disturbance, ...] = ()
    collapse_at_s: float = inf
    sla_changes: tuple[tuple[float, SLA], ...] = ()
    outages: tuple[tuple[float, float], ...] = ()
    """Spans in which no telemetry can be read."""
    phases: tuple[float, ...] = ()
    """Starts of stretches in which the load is stationary, for judging SLAAchievable; empty where
    it is not."""
    step_at_s: float | None = None
    """When a stationary load gives way to another."""
    is_steady: bool = False
    load: float | None = None
    """A steady load, in parts of capacity."""

    def parts(self, seed: int, unit_rps: float) -> tuple[PodPart, ...]:
        """The requests of one seed: the same for every arm."""
        return self.make(np.random.default_rng([seed, 20_231_116]), unit_rps)

    def sla_at(self, at_s: float) -> SLA:
        """Return the SLA at a time."""
        sla = self.setting.sla
        for start_s, changed in self.sla_changes:
            if at_s >= start_s:
                sla = changed
        return sla


@dataclass(frozen=True, slots=True)
class _Shape:
    """The one-pod workload: a rate in parts of capacity, a mix, and how bursty."""

    rate: Rate
    mix: Mix
    cv: float = 1.0
    later: tuple[float, Mix] | None = None
    """From this time on, another mix."""
    duration_s: float = DURATION_S

    def __call__(self, random: np.random.Generator, unit_rps: float) -> tuple[PodPart, ...]:
        """Draw."""
        at_s = arrivals(random, lambda t: unit_rps * self.rate(t), self.duration_s, self.cv)
        columns = self.mix.draw(random, len(at_s))
        if self.later is not None:
            start_s, mix = self.later
            others = mix.draw(random, len(at_s))
            columns = (
                np.where(at_s < start_s, columns[0], others[0]),
                np.where(at_s < start_s, columns[1], others[1]),
                np.where(at_s < start_s, columns[2], others[2]),
            )
        prompt, output, cached = columns
        return (PodPart(0.0, Requests(at_s, prompt, output, cached, _interactive(len(at_s)))),)


@dataclass(frozen=True, slots=True)
class _Replicas:
    """A router spreads arrivals evenly over the pods that are there: 2, then 3, then 2."""

    mix: Mix
    load: float
    """Of two pods, in parts of their capacity."""
    added_s: float
    removed_s: float
    duration_s: float = DURATION_S

    def __call__(self, random: np.random.Generator, unit_rps: float) -> tuple[PodPart, ...]:
        """Draw."""
        at_s = arrivals(random, constant(2 * unit_rps * self.load), self.duration_s)
        prompt, output, cached = self.mix.draw(random, len(at_s))
        turn = np.arange(len(at_s))
        are_three = (at_s >= self.added_s) & (at_s < self.removed_s)
        pod = np.where(are_three, turn % 3, turn % 2)
        parts = []
        for index, start_s in enumerate((0.0, 0.0, self.added_s)):
            mine = pod == index
            count = int(mine.sum())
            share = Requests(
                at_s[mine] - start_s, prompt[mine], output[mine], cached[mine], _interactive(count)
            )
            parts.append(PodPart(start_s, share))
        return tuple(parts)


@dataclass(frozen=True, slots=True)
class _Trace:
    """A stretch of a recorded trace, brought to a wanted rate."""

    path: Path
    load: float

    def __call__(self, random: np.random.Generator, unit_rps: float) -> tuple[PodPart, ...]:
        """Choose the stretch."""
        trace = traces.load(self.path)
        rate_rps = self.load * unit_rps
        last = max(1, len(trace) - int(rate_rps * DURATION_S))
        first = int(random.integers(0, last))
        chosen = traces.excerpt(trace, first=first, rate_rps=rate_rps, duration_s=DURATION_S)
        return (PodPart(0.0, chosen),)


def shaped(
    rate: Rate, mix: Mix, *, later: tuple[float, Mix], duration_s: float = DURATION_S
) -> Make:
    """Poisson arrivals at a rate in requests a second (of a unit of 1), and a change of mix."""
    return _Shape(rate, mix, later=later, duration_s=duration_s)


def steady(
    setting: ServingSetting, load: float, mix: Mix | None = None, duration_s: float = DURATION_S
) -> ReportWorkload:
    """Poisson arrivals at one rate."""
    mix = mix or setting.mix
    return ReportWorkload(
        f"{setting.name}: steady {load:g}",
        setting,
        _Shape(constant(load), mix, duration_s=duration_s),
        mix,
        duration_s,
        phases=(0.0,),
        is_steady=True,
        load=load,
    )


def workloads(trace: Path | None = None) -> tuple[ReportWorkload, ...]:
    """All, in the order of the page; the recorded trace only where it is given."""
    main = H100_ITL
    return (
        *(steady(main, load) for load in SWEEP),
        *_changing(main),
        *_disturbed(main),
        *((_recorded(main, trace),) if trace is not None else ()),
        *(steady(H100_TPOT, load) for load in (0.5, 0.9, 1.15)),
        *_some(H100_TPOT, ("step", "burst CV 2.5", "mix shift")),
        *(steady(A100_ITL, load) for load in (0.5, 0.9, 1.15)),
        *_some(A100_ITL, ("step", "burst CV 2.5")),
        *(steady(PUBLISHED_ITL, load) for load in (0.5, 0.9, 1.15)),
        *_some(PUBLISHED_ITL, ("step", "burst CV 2.5")),
        *(steady(H100_70B_ITL, load) for load in (0.5, 0.9)),
        *_some(H100_70B_ITL, ("step",)),
        *(steady(CPU_ITL, load) for load in (0.5, 0.9)),
    )


def _some(setting: ServingSetting, names: Sequence[str]) -> tuple[ReportWorkload, ...]:
    wanted = {f"{setting.name}: {name}" for name in names}
    return tuple(w for w in _changing(setting) if w.name in wanted)


def long_prompts() -> tuple[ReportWorkload, ...]:
    """The family of long prompts, a report of its own."""
    main = H100_LONG_ITL
    return (
        *(_of_mix(main, mix, load) for mix in (LONG, LONG_30, LONG_60) for load in LONG_LOADS),
        *(_of_mix(main, mix, load) for mix in (AGENTS, VERY_LONG) for load in LONG_LOADS),
        *_some(main, ("step", "burst CV 2.5")),
        *(_of_mix(H100_LONG_TPOT, LONG_30, load) for load in LONG_LOADS),
        *_some(H100_LONG_TPOT, ("step",)),
        *(_of_mix(A100_LONG_ITL, LONG_30, load) for load in LONG_LOADS),
        *(_of_mix(H100_70B_LONG_ITL, LONG_30, load) for load in LONG_LOADS),
    )


def _of_mix(setting: ServingSetting, mix: Mix, load: float) -> ReportWorkload:
    return replace(steady(setting, load, mix), name=f"{setting.name}: {mix.name} {load:g}")


def _one(setting: ServingSetting, name: str, shape: _Shape) -> ReportWorkload:
    return ReportWorkload(f"{setting.name}: {name}", setting, shape, shape.mix)


def _changing(setting: ServingSetting) -> tuple[ReportWorkload, ...]:
    """The load itself changes."""
    mix = setting.mix
    up = _one(setting, "step", _Shape(pieces((0.0, 0.4), (240.0, 0.9)), mix))
    over = _one(setting, "overload", _Shape(pieces((0.0, 0.6), (160.0, 1.4), (320.0, 0.6)), mix))
    shift = _one(setting, "mix shift", _Shape(constant(0.6), mix, later=(240.0, CODE)))
    return (
        replace(up, phases=(0.0, 240.0), step_at_s=240.0),
        replace(over, phases=(0.0, 160.0, 320.0)),
        *(
            _one(setting, f"burst CV {cv:g}", _Shape(constant(0.7), mix, cv))
            for cv in (2.5, 5.0)  # 1 is Poisson: the steady ones
        ),
        _one(setting, "diurnal", _Shape(wave(0.2, 0.95, DURATION_S / 2), mix)),
        replace(shift, phases=(0.0, 240.0), step_at_s=240.0),
        _one(setting, "heavy tail", _Shape(constant(0.7), HEAVY_TAIL)),
        _one(setting, "reasoning", _Shape(constant(0.7), REASONING)),
    )


def _disturbed(setting: ServingSetting) -> tuple[ReportWorkload, ...]:
    """Something else changes: the cache, the device, the SLA, the telemetry, the replicas."""
    mix, tighter = setting.mix, replace(setting.sla, itl_p99_ms=0.7 * setting.pace_ms)
    name = setting.name
    at_80 = _one(setting, "", _Shape(constant(0.8), mix))
    collapse = _one(setting, "prefix-hit collapse", _Shape(constant(0.4), CACHED))
    return (
        replace(collapse, collapse_at_s=240.0, phases=(0.0, 240.0)),
        replace(
            at_80,
            name=f"{name}: hot neighbour",
            disturbances=(Disturbance(160.0, 320.0, 1.35),),
            phases=(0.0, 160.0, 320.0),
        ),
        replace(
            _one(setting, "throttling", _Shape(constant(0.6), mix)),
            disturbances=(Disturbance(160.0, 380.0, 1.3, ramp_s=30.0),),
        ),
        replace(
            at_80,
            name=f"{name}: version change",
            disturbances=(Disturbance(240.0, inf, 1.2),),
            phases=(0.0, 240.0),
        ),
        replace(
            at_80,
            name=f"{name}: SLA change",
            sla_changes=((240.0, tighter),),
            phases=(0.0, 240.0),
        ),
        replace(
            _one(setting, "metric outage", _Shape(pieces((0.0, 0.4), (220.0, 0.9)), mix)),
            outages=((180.0, 300.0),),
        ),
        ReportWorkload(f"{name}: replicas 2-3-2", setting, _Replicas(mix, 0.8, 160.0, 320.0), mix),
    )


def _recorded(setting: ServingSetting, path: Path) -> ReportWorkload:
    return ReportWorkload(f"{setting.name}: trace", setting, _Trace(path, 0.7), setting.mix)


def _interactive(count: int) -> "np.ndarray[tuple[int], np.dtype[np.int8]]":
    return np.zeros(count, dtype=np.int8)


@lru_cache
def workload_named(name: str, trace: Path | None) -> ReportWorkload:
    """Find a workload by its name, in any process. Raises KeyError."""
    return {w.name: w for w in (*workloads(trace), *long_prompts())}[name]


QUICK = ("steady 0.6", "steady 1.15", "step", "burst CV 2.5", "hot neighbour")
"""Of the first setting, for development."""
