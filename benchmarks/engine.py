"""Ours beside transformers on the embedded model: tokens a second, TTFT and TPOT.

64 requests, prompts of 32 to 512 tokens, 64 output tokens each, 16 at a time; greedy, end tokens
ignored, so that every engine does the same work. All engines run in this process one after the
other, in every repeat, in an order that rotates; prompts differ between repeats. Figures are
medians over repeats.

    python benchmarks/engine.py --repeats 3
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from paceline_engine.engine.engine import Engine
from paceline_engine.loading.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits
from serving_workload import Figures, Run, Timeline, Workload, figures
from transformers_peer import continuous_batching, padded_generate, transformers_model

RESULTS = Path(__file__).parent / "results" / "cpu"


def paceline(model: LoadedModel, token_budget: int) -> Run:
    """Our engine, its step loop in this process; a request is sent when one has finished."""

    def run(prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        limits = Limits(max_batch_size=workload.concurrency, token_budget=token_budget)
        engine = Engine(
            model.runner,
            model.info,
            model.capacity,
            NoPacer(),
            limits=limits,
            clock=time.perf_counter,
        )
        sampling = Sampling(max_tokens=workload.output_tokens, temperature=0.0, ignore_eos=True)
        sent: dict[str, float] = {}
        tokens: dict[str, list[float]] = {}

        def send() -> None:
            id_ = str(len(sent))
            sent[id_], tokens[id_] = time.perf_counter(), []
            engine.submit(Submit(id_, prompts[int(id_)], sampling, arrived_at=sent[id_]))

        for _ in range(min(workload.concurrency, len(prompts))):
            send()
        while not engine.is_idle:
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                tokens[output.id] += [now] * len(output.token_ids)
                if output.finish is not None and len(sent) < len(prompts):
                    send()
        return [Timeline(sent[id_], tuple(tokens[id_])) for id_ in sent]

    return run


def _median(runs: Sequence[Figures]) -> dict[str, float]:
    columns = [asdict(run) for run in runs]
    return {name: statistics.median(run[name] for run in columns) for name in columns[0]}


def _table(medians: dict[str, dict[str, float]], ours: str) -> str:
    lines = [
        "| Engine | output tok/s | ratio | TTFT p50 / p99 ms | TPOT p50 / p99 ms |",
        "|---|---|---|---|---|",
    ]
    for name, row in medians.items():
        ratio = medians[ours]["output_tokens_per_s"] / row["output_tokens_per_s"]
        lines.append(
            f"| {name} | {row['output_tokens_per_s']:.1f} | {ratio:.2f} "
            f"| {row['ttft_p50_ms']:,.0f} / {row['ttft_p99_ms']:,.0f} "
            f"| {row['tpot_p50_ms']:.1f} / {row['tpot_p99_ms']:.1f} |"
        )
    return "\n".join(lines)


def _write(
    path: Path, table: str, record: dict[str, Any], workload: Workload, repeats: int
) -> None:
    path.mkdir(parents=True, exist_ok=True)
    (path / "engine.json").write_text(json.dumps(record, indent=1) + "\n")
    text = (
        "# The engine on a CPU\n\n"
        f"SmolLM2-135M-Instruct, float32, {workload.requests} requests, prompts of "
        f"{workload.shortest} to {workload.longest} tokens, {workload.output_tokens} output "
        f"tokens, {workload.concurrency} at a time; medians of {repeats} interleaved runs.\n"
        "`ratio` is how many times faster Paceline is than the row's engine.\n\n"
        f"{table}\n\n"
        f"{record['machine']['threads']} threads, torch {record['machine']['torch']}, "
        f"transformers {record['machine']['transformers']}. "
        "Made by `python benchmarks/engine.py`.\n"
    )
    (path / "engine.md").write_text(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--token-budget", type=int, default=256, help="ours, per step")
    parser.add_argument("--threads", type=int, default=0, help="0 is every core")
    parser.add_argument("--only", nargs="*", help="of: paceline, continuous, padded")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    """Run every engine, print the table and write it."""
    arguments = _arguments()
    workload = Workload(requests=arguments.requests)
    settings = Settings(device="cpu", dtype="float32", threads=arguments.threads)
    model = load_model(settings, lambda _stage, _fraction: None)
    engines: dict[str, Run] = {"paceline": paceline(model, arguments.token_budget)}
    if arguments.only != ["paceline"]:
        reference = transformers_model()
        engines["continuous"] = continuous_batching(reference)
        engines["padded"] = padded_generate(reference)
    engines = {name: run for name, run in engines.items() if name in (arguments.only or engines)}

    runs: dict[str, list[Figures]] = {name: [] for name in engines}
    for repeat in range(arguments.repeats):
        prompts = workload.prompts(seed=repeat)
        names = list(engines)
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            result = figures(engines[name](prompts, workload), workload)
            runs[name].append(result)
            print(f"{repeat + 1}/{arguments.repeats} {name}: {result}", flush=True)

    medians = {name: _median(results) for name, results in runs.items()}
    table = _table(medians, next(iter(medians)))
    print(table)
    if arguments.only is None:
        import transformers  # noqa: PLC0415 - loaded above

        record = {
            "workload": asdict(workload),
            "machine": {
                "processor": platform.processor() or platform.machine(),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
            "token_budget": arguments.token_budget,
            "runs": {name: [asdict(run) for run in results] for name, results in runs.items()},
            "medians": medians,
        }
        _write(arguments.results, table, record, workload, arguments.repeats)


if __name__ == "__main__":
    main()
