"""Measure a fleet: python -m fleet [--pods 300 3000] [--processes 2] [--chaos].

PYTHONPATH is benchmarks:tests. The fake sidecars run in this process, the tuner in processes of
its own, so that the cost of either can be told from the other's. With `--chaos` every tenth pod
answers what it should not, and half way all engines start anew at once; of several processes one
is killed at the beginning, and another is stopped after a sixth of the time.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from fleet.faults import FAULTS
from fleet.page import page
from fleet.recordings import PERIOD_S, Recording, record
from fleet.sidecars import PODS_A_SERVICE, FakePod, serve, uid
from paceline_operator.sharding.shares import shard_of

_RESULTS = Path(__file__).parents[1] / "results" / "operator"
_FILES = 65_536
_EVERY = 10
"""One pod in this many is faulty."""


def main() -> None:
    """Run each size, print what was found, and keep it with `--results`."""
    options = _options()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, most), most))
    polls = int((options.warm + options.seconds) / PERIOD_S) + 40
    pool = [record(options.rps, polls, seed=seed) for seed in range(1, options.recordings + 1)]
    runs = [asyncio.run(_run(pool, pods, options)) for pods in options.pods]
    print(json.dumps(runs, indent=1))
    if options.results:
        name = "fleet-chaos" if options.chaos else "fleet"
        name += "-processes" if options.processes > 1 else ""
        (_RESULTS / f"{name}.json").write_text(json.dumps(runs, indent=1) + "\n")
        (_RESULTS / f"{name}.md").write_text(page(runs, has_chaos=options.chaos))


async def _run(
    pool: list[Recording], num_pods: int, options: argparse.Namespace
) -> dict[str, object]:
    pods = [FakePod(n, pool[n % len(pool)], n // len(pool) % 20) for n in range(num_pods)]
    server = await serve(pods)
    began = time.process_time()
    command = [sys.executable, "-m", "fleet.tuned", str(num_pods)]
    command += [str(options.warm), str(options.seconds), str(options.processes)]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert child.stdout is not None
    pids = json.loads(await child.stdout.readline())
    cpu_s = time.process_time() - began
    for pod in pods:
        pod.counts.clear()
    disturbed = await _disturb(pods, pids, options.seconds) if options.chaos else {}
    said = await child.stdout.read()
    await child.wait()
    server.close()
    found: dict[str, object] = json.loads(said)
    return (
        found
        | {
            "sidecars_cores": (time.process_time() - began - cpu_s) / options.seconds,
            "answer_bytes": _median([len(answer.sample) for answer in pool[0].answers]),
            "whole_answer_bytes": _median([len(answer.records) for answer in pool[0].answers]),
            "load_average": os.getloadavg()[0],
            "cores": os.cpu_count(),
        }
        | disturbed
        | _told(pods)
    )


async def _disturb(pods: list[FakePod], pids: list[int], seconds: float) -> dict[str, object]:
    """Let one pod in ten lie from now on; half way let all engines start anew."""
    kinds = list(FAULTS)
    for place, pod in enumerate(pods[::_EVERY]):
        pod.neighbour = pods[pod.number + (1 if pod.number % PODS_A_SERVICE < 2 else -1)]
        pod.fault = kinds[place % len(kinds)]
    lost_at = await _lose_shards(pids, seconds)
    honest = [pod for pod in pods if not pod.fault]
    shards = [_of_shard(honest, number, len(pids)) for number in range(len(lost_at))]
    anew_s = [
        max(pod.read_anew_at for pod in shard) - at
        for shard, at in zip(shards, lost_at, strict=True)
    ]
    before = _told(pods)
    for pod in pods:
        pod.counts.clear()
        pod.restart(pod.place)
    await asyncio.sleep(seconds / 2 - 1)
    waited = sorted((p.told_at or float("inf")) - p.started_at for p in honest)
    return {
        "faulty_pods": len(pods) - len(honest),
        "before_restart": before,
        "read_anew_after_kill_s": anew_s[0] if anew_s else None,
        "read_anew_after_stop_s": anew_s[1] if anew_s else None,
        "told_after_restart_p50_s": waited[len(waited) // 2],
        "told_after_restart_last_s": waited[-1],
    }


async def _lose_shards(pids: list[int], seconds: float) -> list[float]:
    """Kill one process, stop another, and wait for half of the time; tells when each was lost."""
    began, lost_at = time.monotonic(), []
    for pid, number in zip(pids, (signal.SIGKILL, signal.SIGSTOP), strict=False):
        os.kill(pid, number)
        lost_at.append(time.monotonic())
        await asyncio.sleep(seconds / 6)
    await asyncio.sleep(began + seconds / 2 - time.monotonic())
    return lost_at


def _of_shard(pods: list[FakePod], number: int, num_shards: int) -> list[FakePod]:
    """Give the pods whose services fall to a shard."""
    return [
        pod for pod in pods if shard_of(uid(pod.number // PODS_A_SERVICE), num_shards) == number
    ]


def _told(pods: list[FakePod]) -> dict[str, object]:
    """Sum up what the pods were sent."""
    told: Counter[str] = Counter()
    for pod in pods:
        told.update(pod.counts)
    return {"told": dict(told)}


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[300, 3000])
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="180 for --chaos of several processes"
    )
    parser.add_argument("--warm", type=float, default=75.0, help="seconds that fill the windows")
    parser.add_argument("--rps", type=float, default=5000 / 60, help="requests a second and pod")
    parser.add_argument("--recordings", type=int, default=4)
    parser.add_argument("--processes", type=int, default=1, help="1: in the operator's own")
    parser.add_argument("--chaos", action="store_true")
    parser.add_argument("--results", action="store_true", help=f"keep the figures in {_RESULTS}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
