"""A file of requests in the batch lane, to its last line, while people go on asking.

The file goes through `examples/pipelines/offline.py`, the program of the overnight Job. The same
requests of people are then offered for as long to a service of its own, without the file.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx

from paceline_api.tuning_spec import tuning_spec
from paceline_cli.bench.cells import quantile_cell
from paceline_cli.bench.endpoint import first_model, opened
from paceline_cli.bench.intervals import Estimate
from paceline_cli.bench.measures import Quantile, measure
from paceline_cli.manifest import read
from paceline_cli.traffic.calibration import OUTPUTS
from paceline_cli.traffic.client_health import judge, watched_loop
from paceline_cli.traffic.client_span import P99
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import OfferedLoad, PlannedRequest, TokenLengths, plan
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.record import ClientRecord
from tuned_service import tuned_service

EXAMPLES = Path(__file__).parents[1] / "examples" / "pipelines"
MANIFEST = EXAMPLES / "offline.yaml"
PROMPTS = TokenLengths(median=100, sigma=0.5, min=16, max=400)
WARMUP_S = 30.0
LONGEST_S = 3600.0  # people ask no longer
Figures = dict[str, Any]


def offline(num_lines: int, rate_rps: float, least_requests: int) -> Figures:
    """Measure people beside files of `num_lines` each, then people alone for as long.

    The next file is posted when one is answered, until people have asked `least_requests` times.
    """
    people = OfferedLoad(rate_rps, cv=1.0, prompt_tokens=PROMPTS, output_tokens=OUTPUTS)
    planned = plan(people, help_topics(), duration_s=LONGEST_S, seed=1)
    least_s = lasting(planned, least_requests)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files: list[Path] = []
        with tuned_service(MANIFEST, folder / "beside") as url:
            seconds, beside = asyncio.run(
                people_during(lambda: jobs(url, folder, num_lines, least_s, files), url, planned)
            )
        lines = sum(answered(each) for each in files)
        with tuned_service(MANIFEST, folder / "alone") as url:
            _, alone = asyncio.run(people_during(lambda: asyncio.sleep(seconds), url, planned))
    file = {
        "lines": num_lines * len(files),
        "answered": lines,
        "lines_per_s": lines / seconds,
    }
    arms = {"alone": alone, "beside": beside}
    return {**arms, "rate_rps": rate_rps, "seconds": seconds, "file": file}


async def people_during(
    work: Callable[[], Awaitable[object]], url: str, planned: Sequence[PlannedRequest]
) -> tuple[float, Figures]:
    """Let people ask before and during `work`; return its seconds and what people saw in them."""
    sla = tuning_spec(read(MANIFEST).spec).sla
    records: list[ClientRecord] = []
    is_over = asyncio.Event()
    async with opened(url) as client, watched_loop() as lag, asyncio.TaskGroup() as group:
        asking = Asking(await first_model(client))
        while_it_lasts = takewhile(lambda _: not is_over.is_set(), planned)
        group.create_task(drive_open(client, while_it_lasts, asking, records.append))
        await asyncio.sleep(WARMUP_S)
        began_at = time.monotonic()
        await work()
        ended_at = time.monotonic()
        is_over.set()
    records.sort(key=lambda record: record.planned_at)
    found = measure(records, began_at, ended_at, sla)
    return ended_at - began_at, {
        "requests": found.offered,
        "attainment": found.attainment.value,
        "ttft_p99": asdict(found.ttft.at(P99)),
        "itl_p99": asdict(found.itl.at(P99)),
        "output_tokens_per_s": found.output_tokens_per_s.value,
        "is_client_late": judge(lag.seen, records, began_at).is_saturated,
    }


def lasting(planned: Sequence[PlannedRequest], num_requests: int) -> float:
    """Return the seconds after the warm-up in which so many requests come. Raises ValueError."""
    after = [each.at_s for each in planned if each.at_s >= WARMUP_S]
    if len(after) <= num_requests:
        raise ValueError(f"{num_requests} requests do not come in {LONGEST_S:.0f} s at this rate")
    return after[num_requests] - WARMUP_S


async def jobs(url: str, folder: Path, num_lines: int, least_s: float, files: list[Path]) -> None:
    """Run the Job on one file after another until `least_s` have passed; add each to `files`."""
    until = time.monotonic() + least_s
    while not files or time.monotonic() < until:
        requests = folder / f"requests-{len(files)}.jsonl"
        requests.write_text("".join(json.dumps(line_of(n)) + "\n" for n in range(num_lines)))
        files.append(requests)
        await job(url, requests)


async def job(url: str, requests: Path) -> None:
    """Run the Job's program until the batch is completed and its answers lie beside the file."""
    command = [str(EXAMPLES / "offline.py"), "--url", f"{url}/v1", "--name", requests.stem]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "--poll", "1", str(requests)
    )
    if await process.wait():
        raise RuntimeError(f"the job ended with {process.returncode}: a line was not answered")


def answered(requests: Path) -> int:
    """Count the lines of a file that have an answer, each once."""
    asked = {json.loads(line)["custom_id"] for line in requests.read_text().splitlines()}
    answers = requests.with_suffix(".answers.jsonl").read_text().splitlines()
    read = [json.loads(answer) for answer in answers]
    good = {each["custom_id"] for each in read if each["response"]["status_code"] == httpx.codes.OK}
    if len(read) != len(asked) or good != asked:
        raise RuntimeError(
            f"{len(asked)} lines, {len(read)} answers, {len(good & asked)} of them good"
        )
    return len(good)


def line_of(number: int) -> Figures:
    """One request of the file."""
    content = f"Write one sentence about the number {number}."
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 32}
    path = "/v1/chat/completions"
    return {"custom_id": f"{number}", "method": "POST", "url": path, "body": body}


def offline_section(by_rate: Mapping[str, Figures]) -> str:
    """Tell what people notice of a file of requests behind them, at each rate of theirs."""
    about = (
        "## A file of requests beside people\n\nA Job's file of requests runs in the batch lane of"
        " one tuned service until its last answer is fetched, and the next one after it until"
        " enough people have asked. People ask all the while, and the same for as long of a service"
        " without the file. In brackets 95 % intervals, open where too few values lie above; of"
        " fewer than 100 values, the maximum."
    )
    rates = sorted(by_rate, key=float)
    return "\n\n".join([about, *(_at_rate(by_rate[rate]) for rate in rates)]) + "\n"


def _at_rate(kept: Figures) -> str:
    file, arms = kept["file"], {"people alone": kept["alone"], "with the file": kept["beside"]}
    late = ", ".join(label for label, found in arms.items() if found["is_client_late"])
    lines = [
        (
            f"{kept['machine']}, {kept['rate_rps']:g} requests a second from people:"
            f" {file['answered']:,} of {file['lines']:,} lines answered in {kept['seconds']:.0f} s,"
            f" {file['lines_per_s']:.1f} a second."
            f"{f' The client itself was late: {late}.' if late else ''}\n"
        ),
        "| | requests | attainment | TTFT p99, ms | ITL p99, ms | output tokens/s to people |",
        "|---|---|---|---|---|---|",
    ]
    for label, found in arms.items():
        lines.append(
            f"| {label} | {found['requests']} | {found['attainment']:.1%} |"
            f" {_cell(found['ttft_p99'])} | {_cell(found['itl_p99'])} |"
            f" {found['output_tokens_per_s']:.1f} |"
        )
    return "\n".join(lines)


def _cell(of: Figures) -> str:
    ms = Estimate(**of["ms"])
    return quantile_cell(
        Quantile(share=of["share"], ms=ms, count=of["count"], has_bound=of["has_bound"])
    )
