"""`paceline bench`, on the command line: measurements that take minutes."""

import sys
from pathlib import Path
from typing import Any

import click

from paceline_cli.bench.grid import BATCH_SIZES
from paceline_cli.bench.options import (
    duration,
    given_targets,
    given_traffic,
    positive_duration,
    target_options,
    traffic_options,
)

_manifest = click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(path_type=Path),
    required=True,
    help="InferenceService (YAML) to serve on this machine.",
)
_resume = click.option(
    "--resume", is_flag=True, help="Go on with what an interrupted run left in --out."
)
_QUICK_POINTS = 3
_QUICK_REQUESTS = 40


@click.group()
def bench() -> None:
    """Measure a service with your own traffic.

    run asks any server (--url) or serves a manifest (-f). sweep and compare change limits and
    scheduling while they measure, which only our engine allows: they serve a manifest (-f) and
    take no --url. check takes a manifest (-f) for its targets alone. check and machines measure
    nothing.
    """


@bench.command()
@click.option(
    "-f",
    "--file",
    "manifest",
    type=click.Path(path_type=Path),
    help="InferenceService to serve here; with --url, only its targets.",
)
@click.option("--url", help="Any OpenAI endpoint: ours, vLLM's, OpenAI's.")
@click.option("--model", help="As requests name it; the first that the server offers if absent.")
@click.option("--api-key-env", metavar="VARIABLE", help="Environment variable with the API key.")
@click.option("--tokenizer", help="Tokenizer (file, folder, hub name) where usage is not reported.")
@click.option(
    "--endpoint",
    type=click.Choice(["completions", "chat"]),
    default="completions",
    show_default=True,
    help="The API that is called.",
)
@click.option(
    "--ignore-eos/--keep-eos",
    default=True,
    show_default=True,
    help="Ignore EOS for answers of the planned length; OpenAI needs --keep-eos.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=positive_duration,
    metavar="TIME",
    default="120s",
    show_default=True,
    help="After it a request without an end counts as missed.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/bench"),
    show_default=True,
    help="Folder for run.html, run.json and requests.jsonl.",
)
@traffic_options
@target_options
def run(**given: Any) -> None:
    """Offer traffic to a server and measure it: attainment, goodput, throughput, latencies.

    Writes run.html, run.json (for check) and requests.jsonl (for --trace) into --out. Without
    --rate, a manifest's service gets 0.7 of what it completes when it is full.
    """
    from rich.console import Console

    from paceline_cli.bench.run import RunOptions, run_bench
    from paceline_cli.run import run as finish

    traffic, sla = given_traffic(given), given_targets(given)
    finish(run_bench(RunOptions(traffic=traffic, sla=sla, **given), Console()))


@bench.command()
@click.argument("result", type=click.Path(path_type=Path))
@click.option("--baseline", type=click.Path(path_type=Path), help="run.json of an earlier run.")
@click.option(
    "-f",
    "--file",
    "manifest",
    type=click.Path(path_type=Path),
    help="InferenceService whose targets count, instead of the run's.",
)
@target_options
def check(**given: Any) -> None:
    """Fail where RESULT, the run.json of a run, missed its SLA or a baseline.

    Only what is missed by more than the noise of its own intervals counts. Exit status 1 with a
    sentence for each miss, 2 for input that cannot be judged.
    """
    from paceline_api.tuning_spec import tuning_spec
    from paceline_cli.bench.check import check as misses_of
    from paceline_cli.bench.check import undecided
    from paceline_cli.bench.document import read_run
    from paceline_cli.errors import BadInputError
    from paceline_cli.manifest import ManifestError, read

    targets = given_targets(given)
    result = read_run(given["result"])
    baseline = read_run(given["baseline"]) if given["baseline"] is not None else None
    try:
        declared = (
            tuning_spec(read(given["manifest"]).spec).sla if given["manifest"] else result.sla
        )
    except ManifestError as problem:
        raise BadInputError(str(problem)) from problem
    sla = targets(declared)
    misses = misses_of(result, baseline, sla)
    for sentence in (*misses, *undecided(result.measures, sla)):
        click.echo(sentence)
    if misses:
        sys.exit(1)
    click.echo("Nothing was missed by more than the noise of the run.")


@bench.command()
@_manifest
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/sweep"),
    show_default=True,
    help="Folder for sweep.html, sweep.json and each point as it ends.",
)
@click.option(
    "--points",
    type=click.IntRange(1, len(BATCH_SIZES)),
    default=len(BATCH_SIZES),
    show_default=True,
    help="Points along each limit, at most.",
)
@click.option(
    "--axis",
    type=click.Choice(["batch_size", "token_budget"]),
    help="Sweep this limit alone.",
)
@click.option(
    "--settle",
    "settle_s",
    type=duration,
    metavar="TIME",
    default="20s",
    show_default=True,
    help="How long the tuner has the traffic before it is measured; not in a closed loop.",
)
@_resume
@click.option("--png", type=click.Path(path_type=Path), help="Save the plot here.")
@click.option(
    "--beside",
    type=click.Path(path_type=Path),
    multiple=True,
    help="sweep.json of another machine, for a table; may be given again.",
)
@click.option("--quick", is_flag=True, help="3 points of 40 requests: for CI, not for a p99.")
@traffic_options
def sweep(path: Path, points: int, quick: bool, **given: Any) -> None:
    """Plot latency and goodput against both limits, mark the knee and the tuner's own point.

    Serves the manifest and changes its limits live. Every point gets the same requests, and so
    does the tuner. Without --rate the load is 0.7 of what the service completes when it is full.
    """
    from dataclasses import replace

    from rich.console import Console

    from paceline_cli.bench.sweep import SweepOptions, run_sweep
    from paceline_cli.run import run

    traffic = given_traffic(given)
    if quick:
        traffic, points = replace(traffic, requests=_QUICK_REQUESTS), min(points, _QUICK_POINTS)
    options = SweepOptions(manifest=path, traffic=traffic, per_axis=points, **given)
    run(run_sweep(options, Console()))


@bench.command()
@click.argument("results", type=click.Path(path_type=Path), nargs=-1, required=True)
def machines(results: tuple[Path, ...]) -> None:
    """Set sweeps of one service on several machines side by side, as a table.

    RESULTS are the sweep.json of each. Every row is the tuner's own point there.
    """
    from rich.console import Console

    from paceline_cli.bench.machines import show_machines
    from paceline_cli.bench.sweep_points import read_sweeps

    show_machines(read_sweeps(results), Console())


@bench.command()
@_manifest
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("out/compare"),
    show_default=True,
    help="Folder for compare.html, compare.json and each trial as it ends.",
)
@click.option(
    "--load",
    "loads",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    default=(0.5, 1.0, 1.5),
    show_default=True,
    help="Multiple of the rate; may be given again.",
)
@click.option(
    "--max-wait",
    "max_wait_s",
    type=duration,
    metavar="TIME",
    help="How long a dynamic batch waits for others, such as 100ms; the manifest's"
    " engine.dynamic.maxWait if absent.",
)
@click.option(
    "--static-batch",
    type=click.IntRange(1),
    help="Requests that a static batch waits for; the max batch size if absent.",
)
@_resume
@click.option("--png", type=click.Path(path_type=Path), help="Save both charts here.")
@click.option("--quick", is_flag=True, help="40 requests at one load: for CI, not for a p99.")
@traffic_options
def compare(path: Path, quick: bool, **given: Any) -> None:
    """Offer the same traffic to static, dynamic and continuous batching, and to the tuner.

    Serves the manifest in each way in turn. Without --rate the load is 0.7 of what continuous
    batching completes when it is full.
    """
    from dataclasses import replace

    from rich.console import Console

    from paceline_cli.bench.compare import CompareOptions, run_compare
    from paceline_cli.run import run

    traffic = given_traffic(given)
    if quick:
        traffic = replace(traffic, requests=_QUICK_REQUESTS)
        given["loads"] = (1.0,)
    run(run_compare(CompareOptions(path, traffic=traffic, **given), Console()))
