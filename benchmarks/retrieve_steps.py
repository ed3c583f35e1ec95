"""Questions at a fixed rate through three tuned services: embed, rank, generate.

The services are those of `examples/pipelines/retrieval.yaml`, each with its own bounds and targets.
A question counts from when it was due, so that a client that is late is no excuse.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from openai import APIError, OpenAI

from paceline_api.labels import Manifest
from paceline_cli.traffic.arrivals import arrivals
from paceline_testing.examples import services_of
from pipeline_cells import LEGEND, quantile, share
from tuned_service import alone, sla_requests, tuned_service
from worded_questions import OF_PASSAGES, Worded, worded

EXAMPLES = Path(__file__).parents[1] / "examples" / "pipelines"
STEPS = {"embed": "embedder", "rank": "ranker", "generate": "generator"}
WARMUP_S = 30.0
MOST_AT_ONCE = 64
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asking:
    """The application with its three clients."""

    embed: OpenAI
    rank: OpenAI
    generate: OpenAI
    passages: list[str]

    def ask(self, question: Worded[int], due_at: float) -> Figures:
        """Go through the three steps; milliseconds of each, and from when it was due to the end.

        What a service refuses each time that the client tries is infinitely late; the steps after
        it are None.
        """
        import retrieve as example  # noqa: PLC0415 - a script, on the path since `main`

        times = [time.perf_counter()]
        near: list[str] = []
        best: list[str] = []
        with suppress(APIError):
            near = example.nearest(self.embed, self.passages, question.text)
            times.append(time.perf_counter())
            best = example.ranked(self.rank, near, question.text)
            times.append(time.perf_counter())
            example.generated(self.generate, best[:2], question.text)
            times.append(time.perf_counter())
        is_answered = len(times) > len(STEPS)
        times += [math.inf] * (len(STEPS) + 1 - len(times))
        wanted = self.passages[question.known]
        spans = (
            1e3 * (end - begin) if begin < math.inf else None for begin, end in pairwise(times)
        )
        return {
            **dict(zip(STEPS, spans, strict=True)),
            "late": 1e3 * (times[0] - due_at),
            "whole": 1e3 * (times[-1] - due_at),
            "is_answered": is_answered,
            "found": wanted in near,
            "first": best[:1] == [wanted],
        }


def retrieve(num_questions: int, rate_rps: float) -> Figures:
    """Offer so many questions a second; what each step took, met and says of itself."""
    services = services_of("pipelines/retrieval.yaml")
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        urls = [
            stack.enter_context(tuned_service(alone(_named(services, step), folder), folder))
            for step in STEPS
        ]
        embed, rank, generate = (OpenAI(base_url=f"{url}/v1", api_key="none") for url in urls)
        passages = (EXAMPLES / "passages.txt").read_text().splitlines()
        asking = Asking(embed, rank, generate, passages)
        offer(asking, max(1, round(WARMUP_S * rate_rps)), rate_rps, seed=1)
        before = [sla_requests(url) for url in urls]
        began = time.perf_counter()
        rows = offer(asking, num_questions, rate_rps, seed=2)
        seconds = time.perf_counter() - began
        after = [sla_requests(url) for url in urls]
        together = diagnosed([*STEPS.values()], seconds, folder)
        found = [diagnosed([each], seconds, folder) for each in STEPS.values()]
    grown = [
        {result: late[result] - early[result] for result in late}
        for early, late in zip(before, after, strict=True)
    ]
    return {
        "rate_rps": rate_rps,
        "rows": rows,
        "declared": {step: _declared(_named(services, step)) for step in STEPS},
        "sla_requests": dict(zip(STEPS, grown, strict=True)),
        "diagnosed": {step: bound(each) for step, each in zip(STEPS, found, strict=True)},
        "shares": dict(zip(STEPS, (each["share"] for each in together["services"]), strict=True)),
        "slowest": next(step for step in STEPS if STEPS[step] == together["slowest"]),
    }


def offer(asking: Asking, count: int, rate_rps: float, *, seed: int) -> list[Figures]:
    """Ask `count` questions at the times of a Poisson process; a row of each."""
    random = Random(seed)
    due_s = arrivals(count, cv=1.0, duration_s=count / rate_rps, random=random)
    questions = worded(OF_PASSAGES, count)
    random.shuffle(questions)
    asked = []
    with ThreadPoolExecutor(MOST_AT_ONCE) as threads:
        start_at = time.perf_counter()
        for after_s, question in zip(due_s, questions, strict=True):
            due_at = start_at + after_s
            time.sleep(max(0.0, due_at - time.perf_counter()))
            asked.append(threads.submit(asking.ask, question, due_at))
    return [each.result() for each in asked]


def diagnosed(names: Sequence[str], seconds: float, state: Path) -> Figures:
    """Run `paceline diagnose` on one service of this machine or several; return its JSON."""
    window = f"{min(3600.0, max(5.0, seconds)):.0f}"
    told = subprocess.run(
        [
            *(sys.executable, "-m", "paceline_cli", "diagnose", *names),
            *("--seconds", window, "--format", "json"),
        ],
        env=os.environ | {"XDG_STATE_HOME": str(state)},
        capture_output=True,
        check=True,
    ).stdout
    found: Figures = json.loads(told)
    return found


def bound(found: Figures) -> Figures:
    """Keep of one service's diagnosis its bound, and its parts."""
    parts = {
        f"{part['name']} ({span['name']})": part["mean_ms"]
        for span in found["spans"]
        for part in span["parts"]
    }
    return {"bound": found["bound"], "busy": found["busy_ms"] / 1e3, "parts": parts}


def retrieve_section(kept: Figures) -> str:
    """Each step's times, what of its targets it kept, and what each service says of itself."""
    rows, found = kept["rows"], kept["diagnosed"]
    whole = [row["whole"] for row in rows]
    answered = [row for row in rows if row["is_answered"]]
    in_steps = sum(row[step] for row in answered for step in STEPS)
    lines = [
        (
            f"## Embed, rank, generate\n\n{kept['machine']}; three services of the embedded model,"
            " each under its own tuner and with a thread of its own, so that three share the"
            f" machine's cores. {len(rows)} questions, no two alike, {kept['rate_rps']:g} a second;"
            f" the client began none more than {max(row['late'] for row in rows):,.0f} ms late, and"
            f" {share(row['is_answered'] for row in rows)} were answered; what is refused is tried"
            " again twice, as the client does by itself. The passage with the answer is among the"
            f" five nearest for {share(row['found'] for row in rows)}, and first after ranking for"
            f" {share(row['first'] for row in rows)}. Attainment is of the prompts that the"
            f" service itself counted, of which embed and rank get several a question. {LEGEND}\n"
        ),
        (
            "| Step | p50 | p99 | share of the time | p99 targets | attainment | bound, says"
            " `diagnose` | its largest part |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for step in STEPS:
        times = [row[step] for row in rows if row[step] is not None]
        of_whole = sum(row[step] for row in answered) / in_steps if answered else 0.0
        parts, counted = found[step]["parts"], kept["sla_requests"][step]
        largest = max(parts, key=lambda name: parts[name], default="none")
        offered = sum(counted.values())
        met = f"{counted['met'] / offered:.1%} of {offered:,.0f}" if offered else "-"
        lines.append(
            f"| {step} | {quantile(times, 0.5)} | {quantile(times, 0.99)} |"
            f" {of_whole:.0%} | {kept['declared'][step]} | {met} | {found[step]['bound']} |"
            f" {largest} |"
        )
    lines.append(f"| whole | {quantile(whole, 0.5)} | {quantile(whole, 0.99)} | | | | | |")
    slowest = kept["slowest"]
    lines.append(
        f"\nThe slowest, says `paceline diagnose` of the three, is {slowest}:"
        f" {kept['shares'][slowest]:.0%} of the sum of their mean latencies."
    )
    return "\n".join(lines) + "\n"


def _named(services: Sequence[Manifest], step: str) -> Manifest:
    return next(each for each in services if each["metadata"]["name"] == STEPS[step])


def _declared(service: Manifest) -> str:
    targets = service["spec"]["sla"]
    return ", ".join(f"{kind.upper()} {of['p99']}" for kind, of in targets.items())
