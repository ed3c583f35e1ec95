"""Paceline beside vLLM for CPUs, OpenVINO GenAI and llama.cpp: the same prompts, in turn.

    python benchmarks/peers/install.py openvino FOLDER
    python benchmarks/peers/install.py vllm FOLDER
    python benchmarks/peers/install.py llama.cpp FOLDER
    PYTHONPATH=benchmarks python benchmarks/peers/prepare.py FOLDER
    PYTHONPATH=benchmarks python benchmarks/peers/run.py FOLDER

`rows.py` lists what is run, `targets.py` what is wanted. Rows that are compared run in turn, repeat
by repeat, and then the next such group does: all at once take more memory than a small machine has.
Each row has a process of its own for all repeats, stopped while the others run. Prompts differ
between repeats and the order rotates. A row that is not installed or does not start is left out,
and said so. `--only` and `--precision` choose rows; then nothing is written unless `--results` says
where.
"""

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

from peers.page import Measured, beside_table, engines_table, page, summary
from peers.process import PeerProcess
from peers.rows import ROWS, Row, groups
from peers.setup import Identity, Precision, Refused
from peers.starts import start_of
from peers.targets import judged
from serving_workload import Figures, Workload, figures

RESULTS = Path(__file__).parent.parent / "results" / "cpu"


def chosen_rows(names: Sequence[str], precisions: Sequence[str]) -> list[Row]:
    """Return the rows of these names and precisions; nothing chosen is everything."""
    return [
        row
        for row in ROWS
        if (not names or row.name in names) and (not precisions or row.precision in precisions)
    ]


class Comparison:
    """The engines that run beside each other, and what they have done so far."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._peers: dict[str, PeerProcess] = {}
        self._identities: dict[str, Identity] = {}
        self._left_out: dict[str, str] = {}
        self._runs: dict[str, list[Figures]] = {}

    def start(self, rows: Sequence[Row], folder: Path) -> None:
        """Start every row that is installed."""
        for row in rows:
            start = start_of(row, folder)
            if start.missing is not None:
                self._leave_out(row.name, f"{start.missing.relative_to(folder)} is not there")
                continue
            try:
                self._peers[row.name] = PeerProcess(row, start, self._workload.concurrency)
            except (Refused, RuntimeError) as why:
                self._leave_out(row.name, str(why))
                continue
            self._runs[row.name] = []
            self._identities[row.name] = self._peers[row.name].identity
            print(f"{row.name} runs: {self._identities[row.name]}", flush=True)

    def repeat(self, number: int) -> None:
        """Run the same new prompts on every engine; each repeat begins with another one."""
        prompts = self._workload.prompts(seed=number)
        names = list(self._peers)
        first = number % max(len(names), 1)
        for name in names[first:] + names[:first]:
            self._run(name, prompts)

    def measured(self) -> Measured:
        """Return what has been found."""
        return Measured(
            self._workload,
            len(os.sched_getaffinity(0)),
            self._identities,
            self._left_out,
            self._runs,
        )

    def close(self) -> None:
        """End every engine; what they have done stays."""
        while self._peers:
            self._peers.popitem()[1].close()

    def _run(self, name: str, prompts: list[list[int]]) -> None:
        try:
            timelines = self._peers[name].run(prompts, self._workload)
        except RuntimeError as why:
            self._peers.pop(name).close()
            del self._runs[name], self._identities[name]
            self._leave_out(name, str(why))
            return
        result = figures(timelines, self._workload)
        self._runs[name].append(result)
        print(f"{len(self._runs[name])} {name}: {result}", flush=True)

    def _leave_out(self, name: str, why: str) -> None:
        self._left_out[name] = why
        print(f"{name} is left out: {why}", flush=True)


def record(measured: Measured) -> dict[str, object]:
    """Return everything as JSON holds it."""
    return {**asdict(measured), "load_average_after": os.getloadavg()}


def main() -> None:
    """Run all in turn, print the tables and write them down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where install.py and prepare.py wrote")
    names, precisions = [row.name for row in ROWS], get_args(Precision)
    parser.add_argument("--only", nargs="+", choices=names, default=[], metavar="NAME")
    parser.add_argument("--precision", nargs="+", choices=precisions, default=[])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--results", type=Path, help=f"by default {RESULTS} for all rows")
    arguments = parser.parse_args()
    rows = chosen_rows(arguments.only, arguments.precision)

    comparison = Comparison(Workload(arguments.requests, arguments.concurrency))
    for group in groups(rows):
        try:
            comparison.start(group, arguments.folder.resolve())
            for number in range(arguments.repeats):
                comparison.repeat(number)
        finally:
            comparison.close()

    measured = comparison.measured()
    print(engines_table(measured), beside_table(measured.runs), sep="\n\n")
    print(summary(judged(measured.runs)))
    results = arguments.results or (RESULTS if len(rows) == len(ROWS) else None)
    if results is not None:
        results.mkdir(parents=True, exist_ok=True)
        (results / "peers.json").write_text(json.dumps(record(measured), indent=1) + "\n")
        (results / "peers.md").write_text(page(measured))


if __name__ == "__main__":
    main()
