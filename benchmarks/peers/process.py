"""A row's engine in a process of its own, which lives through all repeats, stopped in between.

Threads that spin after a step, or wake while they wait, take nothing from the engine that runs.
"""

import json
import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from peers.rows import Row
from peers.setup import Identity, Refused
from peers.starts import Start
from serving_workload import Timeline, Workload

WARM_UP = Workload(requests=4, concurrency=4, output_tokens=8)


class PeerProcess:
    """One engine, started, warm and stopped."""

    def __init__(self, row: Row, start: Start, concurrency: int) -> None:
        """Start it; raise `Refused` or RuntimeError where it does not run."""
        self._process = subprocess.Popen(
            start.command(row, concurrency),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=start.variables(),
            process_group=0,  # its children stop with it
        )
        try:
            self.identity = self._identity()
            self.run(WARM_UP.prompts(seed=-1), WARM_UP)
        except BaseException:
            self.close()
            raise

    def run(self, prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        """Run the workload on it; raise RuntimeError where it ends instead."""
        assert self._process.stdin is not None
        order = {"prompts": prompts, "workload": asdict(workload)}
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):  # what is read next says that it has ended
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        timelines = [Timeline(line["sent"], tuple(line["tokens"])) for line in self._read()]
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return timelines

    def close(self) -> None:
        """End it: its input ends, or it is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()

    def _identity(self) -> Identity:
        told = self._read()
        if "refused" in told:
            raise Refused(told["refused"])
        return Identity(**told["ready"])

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"it has ended with exit status {self._process.wait()}")
        return json.loads(line)
