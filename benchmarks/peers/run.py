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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serving_workload import Figures, Timeline, Workload, figures

HERE = Path(__file__).parent
RESULTS = HERE.parent / "results" / "cpu"
WARM_UP = Workload(requests=4, concurrency=4, output_tokens=8)


class PeerProcess:
    """One engine, started and warm."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | environment,
        )
        assert self._read() == "ready"
        self.run(WARM_UP.prompts(seed=-1), WARM_UP)

    def run(self, prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        """Let it run the workload."""
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


def commands(
    folder: Path, token_budget: int, concurrency: int
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """What starts each engine that is installed, and its environment variables."""
    sizes = [str(token_budget), str(concurrency)]
    found: dict[str, tuple[list[str], dict[str, str]]] = {
        "Paceline": ([sys.executable, str(HERE / "serve_paceline.py"), *sizes], {})
    }
    vllm, openvino = folder / "vllm", folder / "openvino"
    if vllm.exists():
        openmp = next(vllm.glob("lib/libiomp5.so"), None)
        script = [str(HERE / "serve_vllm.py"), str(folder / "model"), *sizes]
        found["vllm-cpu"] = (
            [str(vllm / "bin" / "python"), *script],
            {
                "VLLM_TARGET_DEVICE": "cpu",
                "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
                "VLLM_CPU_KVCACHE_SPACE": "1",
                "VLLM_CPU_OMP_THREADS_BIND": "all",
                "HF_HUB_OFFLINE": "1",
                **({"LD_PRELOAD": str(openmp)} if openmp else {}),
            },
        )
    if (folder / "openvino-model").exists():
        script = [str(HERE / "serve_openvino.py"), str(folder / "openvino-model"), *sizes]
        found["OpenVINO GenAI"] = ([str(openvino / "bin" / "python"), *script], {})
    return found


def spread(runs: Sequence[Figures], name: str, digits: int = 1) -> str:
    """The median and the range."""
    values = [getattr(run, name) for run in runs]
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def table(runs: dict[str, list[Figures]]) -> str:
    """A row an engine: medians, and ranges in brackets."""
    lines = [
        "| Engine | output tok/s | TTFT p50 ms | TTFT p99 ms | TPOT p50 ms | TPOT p99 ms |",
        "|---|---|---|---|---|---|",
    ]
    for name, results in runs.items():
        cells = [spread(results, "output_tokens_per_s")]
        cells += [
            spread(results, column, 0)
            for column in ("ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms")
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run all in turn, print the table and write it down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where install.py and prepare.py wrote")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--token-budget", type=int, default=256, help="per step; vLLM takes 2,048")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    workload = Workload(requests=arguments.requests, concurrency=arguments.concurrency)
    found = commands(arguments.folder.resolve(), arguments.token_budget, arguments.concurrency)
    for missing in {"vllm-cpu", "OpenVINO GenAI"} - found.keys():
        print(f"{missing} is not installed in {arguments.folder}: left out", flush=True)

    peers: dict[str, PeerProcess] = {}
    runs: dict[str, list[Figures]] = {name: [] for name in found}
    try:
        for name, (command, environment) in found.items():
            peers[name] = PeerProcess(command, environment)
        for repeat in range(arguments.repeats):
            prompts = workload.prompts(seed=repeat)
            names = list(peers)
            first = repeat % len(names)
            for name in names[first:] + names[:first]:
                result = figures(peers[name].run(prompts, workload), workload)
                runs[name].append(result)
                print(f"{repeat + 1}/{arguments.repeats} {name}: {result}", flush=True)
    finally:
        for peer in peers.values():
            peer.close()

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
        f"{arguments.repeats} interleaved runs and their ranges.\n\n{table(runs)}\n\n"
        "Made by `python benchmarks/peers/run.py`.\n"
    )


if __name__ == "__main__":
    main()
