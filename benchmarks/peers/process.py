"""A row's engine in a process of its own, which lives through all repeats and sleeps in between."""

import json
import os
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.rows import Row
from peers.setup import Identity, Refused
from peers.starts import Start
from serving_workload import Timeline, Workload

WARM_UP = Workload(requests=4, concurrency=4, output_tokens=8)


class PeerProcess:
    """One engine, started and warm."""

    def __init__(self, row: Row, start: Start, concurrency: int) -> None:
        """Start it; raise `Refused` or RuntimeError where it does not run."""
        self._process = subprocess.Popen(
            start.command(row, concurrency),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=start.variables(),
            start_new_session=True,  # so that its children are counted with it
        )
        told = self._read()
        if "refused" in told:
            self.close()
            raise Refused(told["refused"])
        self.identity = Identity(**told["ready"])
        self.run(WARM_UP.prompts(seed=-1), WARM_UP)

    def run(self, prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        """Run the workload on it; raise RuntimeError where it ends instead."""
        assert self._process.stdin is not None
        order = {"prompts": prompts, "workload": asdict(workload)}
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what is read next says that it has ended
        return [Timeline(line["sent"], tuple(line["tokens"])) for line in self._read()]

    def cpu_s(self) -> float:
        """Return the processor time that it and its children have taken."""
        return sum(_cpu_s(stat, self._process.pid) for stat in Path("/proc").glob("[0-9]*/stat"))

    def close(self) -> None:
        """End it: its input ends, or it is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"it has ended with exit status {self._process.wait()}")
        return json.loads(line)


def _cpu_s(stat: Path, session: int) -> float:
    """Return the processor time of a process, if it is of the session."""
    try:
        values = stat.read_text().rpartition(")")[2].split()  # from the state on
    except (FileNotFoundError, ProcessLookupError):
        return 0.0  # it has ended since it was listed
    if int(values[3]) != session:
        return 0.0
    return sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
