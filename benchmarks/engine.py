"""Ours beside transformers on the embedded model: tokens a second, TTFT and TPOT.

64 requests, prompts of 32 to 512 tokens, 64 output tokens each, 16 at a time; greedy, end tokens
ignored, so that every engine does the same work. All engines run in this process one after the
other, in every repeat, in an order that rotates; prompts differ between repeats. Figures are
medians over repeats.

    python benchmarks/engine.py --repeats 3
"""

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_engine.engine import Engine
from paceline_engine.limits import Limits
from paceline_engine.model.load import LoadedModel, load_model
from paceline_engine.pacing.pacer import NoPacer
from paceline_engine.settings import Settings
from paceline_engine.wire import Sampling, Submit

RESULTS = Path(__file__).parent / "results" / "cpu"
VOCAB = 49_152
FIRST_PLAIN_TOKEN = 17  # those before are special


@dataclass(frozen=True)
class Workload:
    """What every engine is given."""

    requests: int = 64
    concurrency: int = 16
    shortest: int = 32
    longest: int = 512
    output_tokens: int = 64

    def prompts(self, seed: int) -> list[list[int]]:
        """Random tokens: no engine can gain from shared prefixes."""
        source = random.Random(seed)
        lengths = [source.randint(self.shortest, self.longest) for _ in range(self.requests)]
        return [[source.randrange(FIRST_PLAIN_TOKEN, VOCAB) for _ in range(n)] for n in lengths]


@dataclass(frozen=True)
class Timeline:
    """When one request was sent, and when each of its tokens came."""

    sent: float
    tokens: tuple[float, ...]


@dataclass(frozen=True)
class Figures:
    """One run of one engine."""

    output_tokens_per_s: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p99_ms: float


Run = Callable[[list[list[int]], Workload], list[Timeline]]


def figures(timelines: Sequence[Timeline], workload: Workload) -> Figures:
    """Reduce what was seen to what is reported."""
    assert len(timelines) == workload.requests
    assert all(len(line.tokens) == workload.output_tokens for line in timelines)
    start = min(line.sent for line in timelines)
    end = max(line.tokens[-1] for line in timelines)
    first = [1e3 * (line.tokens[0] - line.sent) for line in timelines]
    gaps = [
        1e3 * (line.tokens[-1] - line.tokens[0]) / (workload.output_tokens - 1)
        for line in timelines
    ]
    total = workload.requests * workload.output_tokens
    return Figures(
        output_tokens_per_s=total / (end - start),
        ttft_p50_ms=float(np.percentile(first, 50)),
        ttft_p99_ms=float(np.percentile(first, 99)),
        tpot_p50_ms=float(np.percentile(gaps, 50)),
        tpot_p99_ms=float(np.percentile(gaps, 99)),
    )


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


def padded_generate(model: Any) -> Run:
    """Run `generate` of transformers in padded batches; a token is timed where it is chosen."""

    class Clock:
        def __init__(self) -> None:
            self.calls: list[float] = []

        def put(self, _tokens: torch.Tensor) -> None:
            self.calls.append(time.perf_counter())

        def end(self) -> None:
            pass

    class LastLogits:
        """Called once a step by `generate`: the only hook it offers with a batch."""

        def __init__(self, clock: Clock) -> None:
            self.clock = clock

        def __call__(self, _ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            self.clock.put(scores)
            return scores

    def run(prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        from transformers import LogitsProcessorList  # noqa: PLC0415 - seconds to import

        lines = []
        for first in range(0, len(prompts), workload.concurrency):
            group = prompts[first : first + workload.concurrency]
            longest = max(map(len, group))
            ids = torch.tensor([[2] * (longest - len(p)) + p for p in group])
            mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in group])
            clock = Clock()
            sent = time.perf_counter()
            with torch.inference_mode():
                model.generate(
                    ids,
                    attention_mask=mask,
                    max_new_tokens=workload.output_tokens,
                    min_new_tokens=workload.output_tokens,
                    do_sample=False,
                    pad_token_id=2,
                    logits_processor=LogitsProcessorList([LastLogits(clock)]),
                )
            lines += [Timeline(sent, tuple(clock.calls))] * len(group)
        return lines

    return run


def continuous_batching(model: Any) -> Run:
    """Run continuous batching of transformers; a token is timed as it is streamed."""

    def run(prompts: list[list[int]], workload: Workload) -> list[Timeline]:
        from transformers import GenerationConfig  # noqa: PLC0415 - seconds to import

        config = GenerationConfig(
            max_new_tokens=workload.output_tokens,
            do_sample=False,
            eos_token_id=-1,
            pad_token_id=2,
        )
        return _stream(model, config, prompts, workload)

    return run


def _stream(
    model: Any, config: Any, prompts: list[list[int]], workload: Workload
) -> list[Timeline]:
    sent: dict[str, float] = {}
    tokens: dict[str, list[float]] = {}
    with model.continuous_batching_context_manager(generation_config=config) as manager:

        def send() -> None:
            number = len(sent)
            id_ = f"r{number}"
            sent[id_], tokens[id_] = time.perf_counter(), []
            manager.add_request(
                prompts[number],
                request_id=id_,
                max_new_tokens=workload.output_tokens,
                streaming=True,
            )

        for _ in range(min(workload.concurrency, len(prompts))):
            send()
        finished = 0
        while finished < len(prompts):
            output = manager.get_result(timeout=60)
            if output is None:
                continue
            now = time.perf_counter()
            times = tokens[output.request_id]
            times += [now] * (len(output.generated_tokens) - len(times))
            if output.is_finished():
                finished += 1
                if len(sent) < len(prompts):
                    send()
    return [Timeline(sent[id_], tuple(tokens[id_])) for id_ in sent]


def _transformers_model() -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import AutoModelForCausalLM, GgufConfig  # noqa: PLC0415 - seconds to import

    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    path = locate("builtin://smollm2-135m-instruct", None, places).path
    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        quantization_config=GgufConfig(gguf_file=path.name, dequantize=True),
        dtype=torch.float32,
    ).eval()


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
    """Run every engine, print the table and write it down."""
    arguments = _arguments()
    workload = Workload(requests=arguments.requests)
    settings = Settings(device="cpu", threads=arguments.threads)
    model = load_model(settings, lambda _stage, _fraction: None)
    engines: dict[str, Run] = {"paceline": paceline(model, arguments.token_budget)}
    if arguments.only != ["paceline"]:
        reference = _transformers_model()
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
