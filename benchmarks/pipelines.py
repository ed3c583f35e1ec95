"""What the example pipelines cost on this machine: the three scripts of `examples/pipelines`.

    PYTHONPATH=tests python benchmarks/pipelines.py retrieve|cascade|offline

`retrieve` has three services and six people at once; `cascade` a small model and one of three times
its layers; `offline` a file of requests beside people (`offline_file.py`).
Each keeps its figures in `results/cpu/pipelines.json` and writes the page anew.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

from openai import OpenAI

from offline_file import offline, offline_page
from paceline_cli.bench.cells import quantile_cell
from paceline_cli.bench.intervals import draws
from paceline_cli.bench.measures import latency_of
from paceline_cli.traffic.calibration import machine
from paceline_engine.checkpoint.formats import open_checkpoint
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.checkpoint.uri import Places, locate
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.whole_service import embedded_service
from resized_model import write_with_layers

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples" / "pipelines"
RESULTS = Path(__file__).parent / "results" / "cpu"
ONE_THREAD = {"PACELINE_ENGINE_THREADS": "1", "PACELINE_ENGINE_DTYPE": "auto"}
STEPS = ("embed", "rank", "generate")
LARGE_TIMES = 3
THRESHOLDS = (0.0, 0.5, 0.6, 0.7, 0.8, 1.0)
OF_SO_MANY = (
    "Milliseconds, in brackets 95 % intervals, open where too few values lie above;"
    " of fewer than 100 values a p99 is the maximum, and marked max."
)
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
    parser.add_argument("--lines", type=int, default=3000, help="Of the file of offline.")
    parser.add_argument("--rate", type=float, default=2.0, help="Of people beside it, a second.")
    given = parser.parse_args()
    sys.path.insert(0, str(EXAMPLES))
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "retrieve": lambda: retrieve(given.repeats),
        "cascade": cascade,
        "offline": lambda: offline(given.lines, given.rate),
    }
    path = given.results / "pipelines.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    found = {"machine": machine(), **measures[given.pipeline]()}
    if given.pipeline == "offline":  # one beside the other: what a file costs goes by the rate
        kept.setdefault("offline", {})[f"{given.rate:g}"] = found
    else:
        kept[given.pipeline] = found
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
        together = diagnosed(services, seconds)
        found = [diagnosed([service], seconds) for service in services]
        urls = [service.admin_url for service in services]
    return {
        "people": people,
        "rows": rows,
        "per_second": len(rows) / seconds,
        "diagnosed": {step: bound(each) for step, each in zip(STEPS, found, strict=True)},
        "shares": dict(zip(STEPS, (each["share"] for each in together["services"]), strict=True)),
        "slowest": STEPS[urls.index(together["slowest"])],
    }


def client(service: Sidecar) -> OpenAI:
    """Return a client of its own, as each process of an application has one."""
    return OpenAI(base_url=f"{service.url}/v1", api_key="none")


def diagnosed(services: Sequence[Sidecar], seconds: float) -> dict[str, Any]:
    """Run `paceline diagnose` on one service or several; return its JSON."""
    command = ["diagnose", "--seconds", f"{max(5.0, seconds):.0f}", "--format", "json"]
    for service in services:
        token_file = service.settings.runtime_token_file
        command += ["--url", service.admin_url, "--token-file", str(token_file)]
    told = subprocess.run(
        [sys.executable, "-m", "paceline_cli", *command], capture_output=True, check=True
    ).stdout
    found: dict[str, Any] = json.loads(told)
    return found


def bound(found: dict[str, Any]) -> dict[str, Any]:
    """Keep of one service's diagnosis its bound, and its parts."""
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


def page(kept: dict[str, Any]) -> str:
    """Write what was measured, for a reader."""
    parts = {"retrieve": retrieve_page, "cascade": cascade_page, "offline": offline_page}
    told = [parts[name](kept[name]) for name in parts if name in kept]
    return "# Pipelines on a CPU\n\n" + "\n".join(told) + "\nMade by `benchmarks/pipelines.py`.\n"


def retrieve_page(kept: dict[str, Any]) -> str:
    """Each step's times, and what each service says of itself."""
    rows, found = kept["rows"], kept["diagnosed"]
    whole = [row["whole"] for row in rows]
    about = (
        f"## Embed, rank, generate\n\n{kept['machine']}; three services of the embedded model, a"
        f" thread each; {kept['people']} people at once, {len(rows)} questions,"
        f" {kept['per_second']:.2f} a second. The passage with the answer is among the five nearest"
        f" for {share(row['found'] for row in rows)}, and first after ranking for"
        f" {share(row['first'] for row in rows)}. {OF_SO_MANY}\n"
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
    slowest = kept["slowest"]
    lines.append(
        f"\nThe slowest, says `paceline diagnose` of the three, is {slowest}:"
        f" {kept['shares'][slowest]:.0%} of the sum of their mean latencies."
    )
    return "\n".join(lines) + "\n"


def cascade_page(kept: dict[str, Any]) -> str:
    """What a threshold keeps, how right that is, and what it costs beside the large model alone."""
    rows = kept["rows"]
    large = [row["large_ms"] for row in rows]
    about = (
        f"## Small, then large\n\n{kept['machine']}; {len(rows)} questions, one at a time. The"
        f" large model is the small one with {kept['large_times']} times its layers, which add"
        " nothing: what it costs is real, what it says is what the small one says, so nothing"
        " follows here about its answers. Every row is computed from one pass, in which both models"
        " answered every question; no threshold was run by itself. The last column is a ratio of"
        f" times. {OF_SO_MANY}\n"
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


def quantile(times_ms: Sequence[float], of: float) -> str:
    """Write a quantile as `paceline bench` does: a maximum of few values is marked max."""
    values = [[ms] for ms in times_ms]
    return quantile_cell(latency_of("", values, draws(len(values))).at(of))


def share(are: Iterable[bool]) -> str:
    """Format how many of them are true."""
    all_of = list(are)
    return f"{sum(all_of)} of {len(all_of)}"


if __name__ == "__main__":
    main()
