"""One run: fifty pods behind one gateway, under the same sessions whatever the policy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from balancing.pods import Meter, Pod, Pods, Settled, an_engine
from balancing.policies import Policy
from balancing.results import Run
from balancing.sessions import Sessions, Traffic
from paceline_sim.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Kind:
    """Some of the fleet's pods, all alike."""

    hardware: Hardware
    settled: Settled
    count: int


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a run."""

    remembered_s: float = 300.0
    """So long before the first second only caches are filled, as if each answer came at once."""
    begin_s: float = 30.0
    end_s: float = 120.0
    """Requests that come between these are counted."""
    drain_s: float = 40.0
    """How long the last of them may take."""


TIMES: Final = Times()


def capacity_rps(kinds: Sequence[Kind]) -> float:
    """Add up λ* over the fleet."""
    return sum(kind.count * kind.settled.capacity_rps for kind in kinds)


def traffic(kinds: Sequence[Kind], load: float, seed: int, times: Times = TIMES) -> Traffic:
    """Draw the requests of a run at so much of the fleet's λ*."""
    sessions = Sessions(load * capacity_rps(kinds), seed)
    before = tuple(sessions.turns(-times.remembered_s, 0.0))
    return Traffic(before, tuple(sessions.turns(0.0, times.end_s)))


def play(
    kinds: Sequence[Kind],
    policy: Policy,
    offered: Traffic,
    seed: int,
    *,
    times: Times = TIMES,
    has_reports: bool,
) -> Run:
    """Offer the requests to the pods, by the policy."""
    settled = [kind.settled for kind in kinds for _ in range(kind.count)]
    devices = [kind.hardware for kind in kinds for _ in range(kind.count)]
    pods = Pods(
        [
            Pod(
                an_engine(device, each, seed=1000 * seed + number),
                Meter(each) if has_reports else None,
            )
            for number, (device, each) in enumerate(zip(devices, settled, strict=True))
        ]
    )
    for turn in offered.before:
        pods.pods[policy.choose(turn, pods)].remember(turn)
    for turn in offered.turns:
        pods.pods[policy.choose(turn, pods)].take(turn)
    for pod in pods.pods:
        pod.advance(times.end_s + times.drain_s)
    return _counted(pods, settled, times, seed)


def _counted(pods: Pods, settled: Sequence[Settled], times: Times, seed: int) -> Run:
    seconds = times.end_s - times.begin_s
    each = [pod.met(since_s=times.begin_s, until_s=times.end_s) for pod in pods.pods]
    jobs = np.concatenate([jobs for jobs, _ in each])
    is_met = np.concatenate([met for _, met in each])
    ttft_s = jobs["first_s"] - jobs["arrival_s"]
    is_begun = ~np.isnan(jobs["scheduled_s"])
    used = [
        len(mine) / seconds / one.capacity_rps for (mine, _), one in zip(each, settled, strict=True)
    ]
    return Run(
        seed=seed,
        offered_rps=len(jobs) / seconds,
        attained=float(is_met.mean()),
        goodput_rps=float(is_met.sum()) / seconds,
        ttft_p50_s=_quantile(ttft_s, 0.5),
        ttft_p99_s=_quantile(ttft_s, 0.99),
        refused=float(np.isnan(ttft_s).mean()),
        hits=float(jobs["hits"][is_begun].sum() / jobs["prompt"][is_begun].sum()),
        utilization=[round(each, 4) for each in used],
    )


def _quantile(values: np.ndarray, quantile: float) -> float:
    return float(np.nanquantile(values, quantile))
