"""Compare what an autoscaler may read, on simulated pods: writes benchmarks/results/autoscale/.

    PYTHONPATH=benchmarks python -m autoscale

Simulated is everything but the decisions: pods are `paceline_sim`'s engines, Kubernetes' controller
is reckoned as `autoscaling/v2` describes it, and the recommendation is the tuner's own code. A pod
serves under the limits at which the tuner came to rest on one of them before; in `tuned` rows each
has the tuner itself, for comparison. Nothing depends on the machine's speed.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from autoscale.arms import ARMS, OURS, UTILIZATION, pods_for
from autoscale.fleet import Fleet
from autoscale.page import page
from autoscale.pods import Pod, Settled
from autoscale.ramp import ramps
from autoscale.settle import settle

RESULTS: Final = Path(__file__).parents[1] / "results" / "autoscale"
_COLD_S: Final = (30.0, 120.0, 300.0)
_SEEDS: Final = (1, 2)
_ENDING_S: Final = 60.0
"""Who came in the last minute may not have ended."""


@dataclass(frozen=True, slots=True)
class Row:
    """One autoscaler under one ramp, as the mean over seeds."""

    ramp: str
    arm: str
    cold_s: float
    is_tuned: bool
    attained: float
    pod_minutes: float
    turns: float
    """Changes of direction; a ramp up and down needs one."""
    most: int
    ready: list[int]
    """Pods that were ready at each sync, of the first seed."""
    checks: bool = False
    """It shows how near settled pods come to tuned ones."""


def run(
    name: str, arm: str, cold_s: float, pod: Settled, *, seeds: tuple[int, ...], is_tuned: bool
) -> Row:
    """Let one autoscaler go through one ramp, once for each seed."""
    ramp, fleets = ramps(pod.capacity_rps)[name], []
    for seed in seeds:
        scaler = ARMS[arm](ramp, pod, cold_s)
        fleet = Fleet(ramp.requests(seed), scaler, pod, cold_s, is_tuned)
        first = pods_for(ramp.low_rps, pod.capacity_rps)
        asyncio.run(fleet.run(ramp.seconds, replicas=first))
        fleets.append(fleet)
    until = ramp.seconds - _ENDING_S
    row = Row(
        name,
        arm,
        cold_s,
        is_tuned,
        attained=fmean(fleet.attained(Pod.met, until) for fleet in fleets),
        pod_minutes=fmean(fleet.pod_minutes for fleet in fleets),
        turns=fmean(fleet.turns for fleet in fleets),
        most=max(max(fleet.replicas) for fleet in fleets),
        ready=fleets[0].ready,
    )
    print(f"{name}, {cold_s:.0f} s, {arm}: {row.attained:.4f} {row.pod_minutes:.0f}", flush=True)
    return row


def main() -> None:
    """Settle one pod, run all, and write JSON and a table."""
    pod = asyncio.run(settle())
    print(pod, flush=True)
    small, large = ramps(pod.capacity_rps)
    RESULTS.mkdir(parents=True, exist_ok=True)
    raw: dict[str, Any] = {"pod": asdict(pod), "rows": []}
    for row in _rows(pod, small, large):
        raw["rows"].append(asdict(row))
        (RESULTS / "autoscale.json").write_text(json.dumps(raw) + "\n")
    (RESULTS / "autoscale.md").write_text(page(raw))


def _rows(pod: Settled, small: str, large: str) -> Iterator[Row]:
    for ramp in (small, large):
        for cold_s in _COLD_S:
            for arm in ARMS:
                yield run(ramp, arm, cold_s, pod, seeds=_SEEDS, is_tuned=False)
    for arm in (OURS, UTILIZATION):
        for is_tuned in (False, True):
            row = run(small, arm, 120.0, pod, seeds=_SEEDS[:1], is_tuned=is_tuned)
            yield replace(row, checks=True)


if __name__ == "__main__":
    main()
