"""Measure a fleet: PYTHONPATH=benchmarks:tests python -m fleet [--pods 300 3000] [--seconds 60].

The fake sidecars run in this process, the tuner in one of its own, so that the cost of either can
be told from the other's.
"""

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from fleet.recordings import PERIOD_S, Recording, record
from fleet.sidecars import FakePod, serve

_RESULTS = Path(__file__).parents[1] / "results" / "operator"
_FILES = 65_536


def main() -> None:
    """Run each size, print a line of each, and write both files with `--results`."""
    options = _options()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(_FILES, most), most))
    polls = int((options.warm + options.seconds) / PERIOD_S) + 40
    pool = [record(options.rps, polls, seed=seed) for seed in range(1, options.recordings + 1)]
    runs = [asyncio.run(_run(pool, pods, options)) for pods in options.pods]
    for run in runs:
        print(json.dumps(run, indent=1))


async def _run(
    pool: list[Recording], num_pods: int, options: argparse.Namespace
) -> dict[str, object]:
    pods = [FakePod(n, pool[n % len(pool)], n // len(pool) % 20) for n in range(num_pods)]
    server = await serve(pods)
    began = time.process_time()
    command = [
        sys.executable,
        "-m",
        "fleet.tuned",
        str(num_pods),
        str(options.warm),
        str(options.seconds),
    ]
    child = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    said, _ = await child.communicate()
    server.close()
    sizes = sorted(len(answer.sample) for answer in pool[0].answers)
    found: dict[str, object] = json.loads(said)
    return found | {
        "sidecars_cpu_s": time.process_time() - began,
        "answer_bytes_p50": sizes[len(sizes) // 2],
        "load_average": os.getloadavg()[0],
        "at": datetime.now(UTC).isoformat(timespec="minutes"),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, nargs="+", default=[300, 3000])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm", type=float, default=70.0, help="seconds that fill the windows")
    parser.add_argument("--rps", type=float, default=5000 / 60, help="requests a second and pod")
    parser.add_argument("--recordings", type=int, default=4)
    parser.add_argument("--results", action="store_true", help=f"keep the figures in {_RESULTS}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
