"""Kubernetes' autoscaler and KEDA on one ramp, by what they read: the parts are real, devices not.

    PYTHONPATH=benchmarks:tests python -m autoscale.real

Four services of the same kind get the same requests at the same time. Three have an autoscaler of
their own, and a schedule writes the replicas of the fourth, the oracle. The control plane, KEDA,
Prometheus and its operator, Paceline's operator, every sidecar, scheduler, pacer and tuner are the
real ones. Pods are processes, and their devices only take time (`paceline_testing.timed_engine`),
so that two cores run a dozen of them. A pod takes half a minute to load, on purpose. CPU is not
compared, as such devices use none. KEDA is built at first, which takes half an hour of one core.
Writes benchmarks/results/autoscale/real.json and .md; `make pictures` draws them.
"""

import argparse
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from tempfile import TemporaryDirectory
from typing import Any, Final

from autoscale.arms import TARGET, Oracle
from autoscale.fleet import turns
from autoscale.page import real_page
from autoscale.ramp import Ramp
from autoscale.real_fleet import Look, RealFleet, every_second
from autoscale.real_services import ARMS, DOWN_S, FORESEEN, TARGETS, create, hand_to_keda, scale
from local_cluster import start
from local_cluster.keda import keda
from paceline_cli.traffic.client_span import is_met, whole_ms
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import PlannedRequest
from paceline_cli.traffic.prompts import long_excerpt
from paceline_cli.traffic.record import ClientRecord
from paceline_testing.monitored_service import monitored_chart
from paceline_testing.waiting import wait_until

RESULTS: Final = Path(__file__).parents[1] / "results" / "autoscale"
_PROMPT_TOKENS: Final = 32
_OUTPUT_TOKENS: Final = 16
_SLOWDOWN: Final = "4"
"""With it a pod serves two requests a second."""
_LOAD_S: Final = 30.0
_COLD_S: Final = 40.0
"""How long the oracle takes a start to be: the load, and the start of two Python processes."""
_LEARN_RPS: Final = 1.2
_LEARN_S: Final = 120.0
_BEFORE_S: Final = 300.0
"""The ramp meets a service that has had a steady load for longer than the trend looks back."""
_ENDING_S: Final = 30.0
"""Who came last may not have ended."""
_WITHIN_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Row:
    """One autoscaler under the ramp."""

    arm: str
    attained: float
    """The share of all requests that were answered within each target."""
    failed: int
    """Requests that were refused or got no whole answer."""
    offered: int
    pod_minutes: float
    turns: int
    """Changes of direction of the replicas; a ramp up and down needs one."""
    most: int
    looks: tuple[Look, ...]


def main() -> None:
    """Learn what a pod serves, let the ramp pass, and write what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20.0, help="of the ramp")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    chosen = parser.parse_args()
    os.environ["TIMED_ENGINE_LOAD_S"] = str(_LOAD_S)
    with TemporaryDirectory() as place, start.control_plane() as cluster:
        folder = Path(place)
        with monitored_chart(cluster, folder) as (node, stack), keda(cluster, folder):
            node.slowdown.write_text(_SLOWDOWN)
            create(cluster)
            raw = _measure(RealFleet(cluster, node, stack), chosen.minutes, chosen.seed)
    chosen.results.mkdir(parents=True, exist_ok=True)
    (chosen.results / "real.json").write_text(json.dumps(raw) + "\n")
    (chosen.results / "real.md").write_text(real_page(raw))
    print(real_page(raw))


def _measure(fleet: RealFleet, minutes: float, seed: int) -> dict[str, Any]:
    capacity_rps = _learned(fleet)
    in_flight = _tested(fleet, TARGET * capacity_rps)
    print(f"one pod: {capacity_rps:.2f}/s within the SLA, {in_flight:.1f} inside", flush=True)
    ramp = _ramp(capacity_rps, minutes)
    hand_to_keda(fleet.cluster, fleet.stack.prometheus, in_flight)
    fleet.drive(_steady(ramp.low_rps, _BEFORE_S))
    planned = _planned(ramp.requests(seed).arrival_s.tolist(), seed)
    began_at = time.monotonic()
    with fleet.watched(began_at) as looks, _foreseen(fleet, ramp, capacity_rps, began_at):
        records = fleet.drive(planned)
    rows = [_row(arm, records[arm], looks[arm], ramp, began_at) for arm in ARMS]
    return {
        "capacity_rps": capacity_rps,
        "in_flight": in_flight,
        "ramp": asdict(ramp),
        "cold_s": _COLD_S,
        "down_s": DOWN_S,
        "targets": {"ttft_ms": TARGETS.ttft_p99_ms, "tpot_ms": TARGETS.tpot_p99_ms},
        "rows": [asdict(row) for row in rows],
    }


def _learned(fleet: RealFleet) -> float:
    """Ask every service until each knows its λ*; return the median, requests a second."""
    fleet.drive(_steady(_LEARN_RPS, _LEARN_S))
    found: dict[str, float | None] = {}

    def known() -> bool:
        found.update({arm: fleet.capacity_rps(arm) for arm in ARMS if not found.get(arm)})
        return all(found.values())

    wait_until(known, within_s=_WITHIN_S, every_s=1.0)
    print(f"λ*: {found}", flush=True)
    return median(value for value in found.values() if value)


def _tested(fleet: RealFleet, rate_rps: float) -> float:
    """Ask so often, as a person's load test does; return the requests that a pod had inside."""
    tested = fleet.drive(_steady(rate_rps, _LEARN_S / 2))
    everything = [each for records in tested.values() for each in records]
    ends = Counter(each.outcome for each in everything)
    print(f"a load test at {rate_rps:.2f}/s: {dict(ends)}", flush=True)
    # Little's law, of those that were answered.
    return rate_rps * fmean(whole_ms(each) / 1e3 for each in everything if each.outcome == "ok")


def _steady(rate_rps: float, seconds: float) -> list[PlannedRequest]:
    chance = random.Random(0)
    count = round(rate_rps * seconds)
    return _planned(sorted(chance.uniform(0, seconds) for _ in range(count)), 0)


def _planned(arrivals: list[float], seed: int) -> list[PlannedRequest]:
    chance, corpus = random.Random(seed), help_topics()
    return [
        PlannedRequest(at_s, long_excerpt(corpus, _PROMPT_TOKENS, chance), _OUTPUT_TOKENS)
        for at_s in arrivals
    ]


def _ramp(capacity_rps: float, minutes: float) -> Ramp:
    """From three fifths of what a pod serves to three times of it, and back."""
    part_s = minutes * 60.0 / 20.0
    return Ramp(
        0.6 * capacity_rps,
        3.0 * capacity_rps,
        quiet_s=2 * part_s,
        rise_s=5 * part_s,
        stay_s=4 * part_s,
        fall_s=4 * part_s,
        rest_s=5 * part_s,
    )


@contextmanager
def _foreseen(fleet: RealFleet, ramp: Ramp, capacity_rps: float, began_at: float) -> Iterator[None]:
    """Write the oracle's replicas, each a start before it is needed."""
    oracle, written = Oracle(ramp, capacity_rps, _COLD_S), [1]

    def follow() -> None:
        wanted = oracle.wanted(time.monotonic() - began_at)
        if wanted != written[-1]:
            scale(fleet.cluster, FORESEEN, wanted)
            written.append(wanted)

    with every_second(follow):
        yield


def _row(
    arm: str, records: list[ClientRecord], looks: list[Look], ramp: Ramp, began_at: float
) -> Row:
    counted = [each for each in records if each.planned_at - began_at < ramp.seconds - _ENDING_S]
    seen = [look for look in looks if look.at_s < ramp.seconds]
    pod_s = sum((after.at_s - before.at_s) * before.there for before, after in pairwise(seen))
    return Row(
        arm=ARMS[arm],
        attained=fmean(is_met(TARGETS, each) for each in counted),
        failed=sum(each.outcome != "ok" for each in counted),
        offered=len(counted),
        pod_minutes=pod_s / 60,
        turns=turns([look.wanted for look in seen]),
        most=max(look.wanted for look in seen),
        looks=tuple(replace(look, at_s=round(look.at_s, 1)) for look in seen[::5]),
    )


if __name__ == "__main__":
    main()
