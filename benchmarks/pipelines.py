"""What the example pipelines cost on this machine: the three scripts of `examples/pipelines`.

    python benchmarks/pipelines.py retrieve    # three services, six people at once
    python benchmarks/pipelines.py cascade     # a small model, and one of three times its layers
    python benchmarks/pipelines.py offline     # a file of requests beside people

Each keeps its figures in `results/cpu/pipelines.json` and writes the page anew.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from openai import OpenAI

from paceline_cli.bench.document import read_run
from paceline_cli.traffic.calibration import machine
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_testing.running_sidecar import Sidecar, free_port
from paceline_testing.waiting import wait_until
from paceline_testing.whole_service import embedded_service
from resized_model import write_with_layers

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "pipelines"
RESULTS = Path(__file__).parent / "results" / "cpu"
ONE_THREAD = {"PACELINE_ENGINE_THREADS": "1", "PACELINE_ENGINE_DTYPE": "auto"}
STEPS = ("embed", "rank", "generate")
LARGE_TIMES = 3
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 1.0)
QUESTIONS = (  # about the passages, each with the number of the one that answers it
    ("When does the bakery open?", 0),
    ("What does the bakery sell on Fridays?", 0),
    ("When is the museum of clocks closed?", 1),
    ("How often does bus 14 run?", 2),
    ("What does the harbour master's office answer?", 3),
    ("How does the swimming pool heat its water?", 4),
    ("How long does the public library lend films?", 5),
    ("When was the bridge over the Aare rebuilt?", 6),
    ("How many stalls of the market hall sell cheese?", 7),
    ("How high is the tower of the church?", 8),
    ("When is the theatre silent?", 9),
)
KNOWN = (  # each with what a right answer says
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Italy?", "Rome"),
    ("What is the capital of Australia?", "Canberra"),
    ("What is the capital of Canada?", "Ottawa"),
    ("What is the capital of Egypt?", "Cairo"),
    ("How many legs does a spider have?", "8|eight"),
    ("How many days are in a leap year?", "366"),
    ("How many minutes are in an hour?", "60|sixty"),
    ("Who wrote Hamlet?", "Shakespeare"),
    ("Who painted the Mona Lisa?", "Leonardo|Vinci"),
    ("Who developed the theory of relativity?", "Einstein"),
    ("What is 2 + 2?", "4|four"),
    ("What is 17 times 23?", "391"),
    ("What is the square root of 144?", "12|twelve"),
    ("What is the chemical symbol of gold?", r"\bAu\b"),
    ("What is the chemical symbol of iron?", r"\bFe\b"),
    ("Which planet is the third from the sun?", "Earth"),
    ("Which planet is the largest of the solar system?", "Jupiter"),
    ("Which gas do plants take from the air?", "carbon dioxide|CO2"),
    ("In which year did the Second World War end?", "1945"),
    ("Which ocean is the largest?", "Pacific"),
    ("What is the longest river of Africa?", "Nile"),
    ("What do bees make?", "honey"),
)


def main() -> None:
    """Measure one pipeline, keep its figures, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("pipeline", choices=("retrieve", "cascade", "offline"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--repeats", type=int, default=4, help="Of each question of retrieve.")
    parser.add_argument("--requests", type=int, default=150, help="Of people, beside the file.")
    given = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "retrieve": lambda: retrieve(given.repeats),
        "cascade": cascade,
        "offline": lambda: offline(given.requests),
    }
    path = given.results / "pipelines.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    kept[given.pipeline] = {"machine": machine(), **measures[given.pipeline]()}
    path.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
    (given.results / "pipelines.md").write_text(page(kept))
    print(page(kept))


def retrieve(repeats: int, people: int = 6) -> dict[str, Any]:
    """Ask `people` questions at a time of three services; milliseconds a step, and who is slow."""
    import retrieve as example  # noqa: PLC0415 - a script, on the path since `main`

    passages = (EXAMPLES / "passages.txt").read_text().splitlines()
    with ExitStack() as stack:
        services = [stack.enter_context(embedded_service(ONE_THREAD)) for _ in STEPS]

        def ask(question: str, wanted: int) -> dict[str, float]:
            embed, rank, generate = (client(service) for service in services)
            times = [time.perf_counter()]
            near = example.nearest(embed, passages, question)
            times.append(time.perf_counter())
            best = example.ranked(rank, near, question)
            times.append(time.perf_counter())
            example.generated(generate, best[:2], question)
            times.append(time.perf_counter())
            spans = (1e3 * (end - begin) for begin, end in pairwise(times))
            row = dict(zip(STEPS, spans, strict=True))
            row |= {"found": passages[wanted] in near, "first": best[0] == passages[wanted]}
            return {**row, "whole": sum(row[step] for step in STEPS)}

        with ThreadPoolExecutor(people) as threads:
            list(threads.map(ask, *zip(*QUESTIONS[:people], strict=True)))  # warms up
            began = time.perf_counter()
            rows = list(threads.map(ask, *zip(*(repeats * QUESTIONS), strict=True)))
            seconds = time.perf_counter() - began
        found = [diagnosed(service, seconds) for service in services]
    return {
        "people": people,
        "rows": rows,
        "per_second": len(rows) / seconds,
        "diagnosed": dict(zip(STEPS, found, strict=True)),
    }


def client(service: Sidecar) -> OpenAI:
    """Return a client of its own, as each process of an application has one."""
    return OpenAI(base_url=f"{service.url}/v1", api_key="none")


def diagnosed(service: Sidecar, seconds: float) -> dict[str, Any]:
    """What `paceline diagnose` says of one service: its bound, and its largest part."""
    token_file = service.settings.runtime_token_file
    command = ["diagnose", "--url", service.admin_url, "--token-file", str(token_file)]
    command += ["--seconds", f"{max(5.0, seconds):.0f}", "--format", "json"]
    told = subprocess.run(
        [sys.executable, "-m", "paceline_cli", *command], capture_output=True, check=True
    ).stdout
    found = json.loads(told)
    parts = {
        f"{part['name']} ({span['name']})": part["mean_ms"]
        for span in found["spans"]
        for part in span["parts"]
    }
    return {"bound": found["bound"], "busy": found["busy_ms"] / 1e3, "parts": parts}


def cascade() -> dict[str, Any]:
    """Ask two models each known question, one at a time: confidence, milliseconds, right or not."""
    import cascade as example  # noqa: PLC0415 - as above

    places = Places(models_dir=None, model_mount=Path("/model"), hub=Hub(Path("/cache")))
    checkpoint = open_checkpoint(locate("builtin://smollm2-135m-instruct", None, places).path)
    rows = []
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        write_with_layers(checkpoint, LARGE_TIMES * checkpoint.config.num_layers, Path(folder))
        large_settings = {**ONE_THREAD, "PACELINE_ENGINE_MODEL_URI": f"file://{folder}"}
        small = client(stack.enter_context(embedded_service(ONE_THREAD)))
        large = client(stack.enter_context(embedded_service(large_settings)))
        for each in (small, large):
            example.ask(each, "Hello")  # warms up
        for question, right in KNOWN:
            began = time.perf_counter()
            answer = example.ask(small, question)
            between = time.perf_counter()
            example.ask(large, question)
            ended = time.perf_counter()
            is_right = re.search(right, answer.text, re.IGNORECASE) is not None
            rows.append(
                {
                    "question": question,
                    "answer": answer.text,
                    "confidence": answer.confidence,
                    "is_right": is_right,
                    "small_ms": 1e3 * (between - began),
                    "large_ms": 1e3 * (ended - between),
                }
            )
    return {"rows": rows, "large_times": LARGE_TIMES}


def offline(num_requests: int) -> dict[str, Any]:
    """Let people ask a tuned service, first alone and then with a file of requests behind them."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    manifest = EXAMPLES / "offline.yaml"
    command = [sys.executable, "-m", "paceline_cli", "up", "-f", str(manifest), "--no-page"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        up = subprocess.Popen([*command, "--port", str(port)], stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: is_ready(url), within_s=300)
            people(url, num_requests // 3, folder / "warm")
            alone = people(url, num_requests, folder / "alone")
            requests = folder / "requests.jsonl"
            lines = [line_of(n) for n in range(4000)]
            requests.write_text("".join(json.dumps(line) + "\n" for line in lines))
            service = OpenAI(base_url=f"{url}/v1", api_key="none")
            with requests.open("rb") as content:
                file = service.files.create(file=content, purpose="batch")
            batch = service.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
            wait_until(lambda: done(service, batch.id) > 0, within_s=120)
            began, before = time.perf_counter(), done(service, batch.id)
            beside = people(url, num_requests, folder / "beside")
            lines_per_second = (done(service, batch.id) - before) / (time.perf_counter() - began)
            service.batches.cancel(batch.id)
        finally:
            up.terminate()
            up.wait(timeout=60)
    return {"alone": alone, "beside": beside, "lines_per_second": lines_per_second}


def is_ready(url: str) -> bool:
    """Whether a service takes requests."""
    try:
        return httpx.get(f"{url}/health/ready").is_success
    except httpx.TransportError:
        return False


def people(url: str, num_requests: int, folder: Path) -> dict[str, Any]:
    """Offer two requests a second with `paceline bench run`; its own figures."""
    traffic = ["--rate", "2", "--requests", str(num_requests), "--prompt-tokens", "100:0.5:16-400"]
    targets = ["--ttft", "2s", "--itl", "300ms"]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "paceline_cli",
            "bench",
            "run",
            "--url",
            url,
            *traffic,
            *targets,
            "--out",
            str(folder),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = read_run(folder / "run.json").measures
    return {
        "requests": found.offered,
        "attainment": found.attainment.value,
        "ttft_p99_ms": asdict(found.ttft.quantiles[-2].ms),
        "itl_p99_ms": asdict(found.itl.quantiles[-2].ms),
        "output_tokens_per_s": found.output_tokens_per_s.value,
    }


def line_of(number: int) -> dict[str, Any]:
    """One request of the file."""
    content = f"Write one sentence about the number {number}."
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 32}
    path = "/v1/chat/completions"
    return {"custom_id": f"{number}", "method": "POST", "url": path, "body": body}


def done(service: OpenAI, batch_id: str) -> int:
    """How many lines of a batch have been answered."""
    counts = service.batches.retrieve(batch_id).request_counts
    return counts.completed if counts else 0


def page(kept: dict[str, Any]) -> str:
    """Write what was measured, for a reader."""
    parts = {"retrieve": retrieve_page, "cascade": cascade_page, "offline": offline_page}
    told = [parts[name](kept[name]) for name in parts if name in kept]
    return "# Pipelines on a CPU\n\n" + "\n".join(told) + "\nMade by `benchmarks/pipelines.py`.\n"


def retrieve_page(kept: dict[str, Any]) -> str:
    """Each step's times, and what each service says of itself."""
    rows, found = kept["rows"], kept["diagnosed"]
    whole = [row["whole"] for row in rows]
    slowest = max(STEPS, key=lambda step: statistics.mean(row[step] for row in rows))
    about = (
        f"## Embed, rank, generate\n\n{kept['machine']}; three services of the embedded model, a"
        f" thread each; {kept['people']} people at once, {len(rows)} questions,"
        f" {kept['per_second']:.2f} a second. The passage with the answer is among the five nearest"
        f" for {share(row['found'] for row in rows)}, and first after ranking for"
        f" {share(row['first'] for row in rows)}.\n"
    )
    lines = [
        about,
        "| Step | p50 | p99 | share of the time | bound, says `diagnose` | its largest part |",
        "|---|---|---|---|---|---|",
    ]
    for step in STEPS:
        times = [row[step] for row in rows]
        parts = found[step]["parts"]
        largest = max(parts, key=lambda name: parts[name], default="none")
        lines.append(
            f"| {step} | {quantile(times, 0.5)} | {quantile(times, 0.99)} |"
            f" {sum(times) / sum(whole):.0%} | {found[step]['bound']} | {largest} |"
        )
    lines.append(f"| whole | {quantile(whole, 0.5)} | {quantile(whole, 0.99)} | | | |")
    return "\n".join(lines) + f"\n\nThe slowest step is {slowest}.\n"


def cascade_page(kept: dict[str, Any]) -> str:
    """What a threshold keeps, how right that is, and what it costs beside the large model alone."""
    rows = kept["rows"]
    large = [row["large_ms"] for row in rows]
    about = (
        f"## Small, then large\n\n{kept['machine']}; {len(rows)} questions, one at a time. The"
        f" large model is the small one with {kept['large_times']} times its layers, which add"
        " nothing: what it costs is real, what it says is what the small one says, so nothing"
        " follows here about its answers.\n"
    )
    lines = [
        about,
        "| Threshold | the small keeps | right of those | p50 | p99 | mean, of the large alone |",
        "|---|---|---|---|---|---|",
    ]
    for threshold in THRESHOLDS:
        kept_rows = [row for row in rows if row["confidence"] >= threshold]
        times = [
            row["small_ms"] + (row["large_ms"] if row["confidence"] < threshold else 0.0)
            for row in rows
        ]
        lines.append(
            f"| {threshold:.1f} | {len(kept_rows)} of {len(rows)} |"
            f" {share(row['is_right'] for row in kept_rows)} | {quantile(times, 0.5)} |"
            f" {quantile(times, 0.99)} | {sum(times) / sum(large):.2f} |"
        )
    lines.append(f"| large alone | | | {quantile(large, 0.5)} | {quantile(large, 0.99)} | 1.00 |")
    return "\n".join(lines) + "\n"


def offline_page(kept: dict[str, Any]) -> str:
    """What people notice of a file of requests behind them."""
    about = (
        f"## A file of requests beside people\n\n{kept['machine']}; one tuned service, two requests"
        f" a second from people, first alone and then while a file runs in the batch lane, which"
        f" has {kept['lines_per_second']:.2f} lines a second answered meanwhile.\n"
    )
    lines = [
        about,
        "| | requests | attainment | TTFT p99 | ITL p99 | output tokens/s to people |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("alone", "beside"):
        found = kept[name]
        ttft, itl = (interval(found[key]) for key in ("ttft_p99_ms", "itl_p99_ms"))
        label = "people alone" if name == "alone" else "with the file"
        lines.append(
            f"| {label} | {found['requests']} | {found['attainment']:.1%} | {ttft} | {itl} |"
            f" {found['output_tokens_per_s']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def quantile(times_ms: Sequence[float], of: float) -> str:
    """Format a quantile of milliseconds."""
    return f"{np.quantile(times_ms, of):,.0f} ms"


def interval(of: dict[str, float | None]) -> str:
    """Format an estimate of milliseconds with its interval."""
    value, low, high = (of[name] for name in ("value", "low", "high"))
    bounds = f" ({_number(low)} to {_number(high)})" if low is not None else ""
    return f"{_number(value)} ms{bounds}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def share(are: Iterable[bool]) -> str:
    """Format how many of them are true."""
    all_of = list(are)
    return f"{sum(all_of)} of {len(all_of)}"


if __name__ == "__main__":
    main()
