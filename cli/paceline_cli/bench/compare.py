"""`paceline bench compare`: the same traffic on the three schedulings, one after the other."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.table import Table

from paceline_cli.bench.compare_report import (
    Comparison,
    SchedulingResult,
    latency_cells,
    write_report,
)
from paceline_cli.bench.sweep import SweepError, write_sweep_copy
from paceline_cli.bench.sweep_points import SHARES, label, measure
from paceline_cli.place import SCHEDULINGS, Scheduling, state_dir
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.traffic.calibration import CV, UTILIZATION, machine, measure_speed, workload
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import plan
from paceline_cli.traffic.open_loop import drive
from paceline_cli.traffic.record import ClientRecord
from paceline_cli.up.live import LiveService
from paceline_cli.up.serving import local_tuner, serving
from paceline_tuner.pods import PodClient, PodError
from paceline_tuner.telemetry import Load

_LEAST_PATIENCE_S: Final = 20.0
_RATE_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What to run and where to write."""

    manifest: Path
    out: Path
    seed: int
    seconds: float
    """Length of the arrivals under each scheduling."""
    rate_rps: float | None = None
    """0.7 of what continuous batching completes when it is full, where None."""


async def run_compare(options: CompareOptions, console: Console) -> Path:
    """Serve under each scheduling, offer the same requests, report; the report's path."""
    manifest = options.out / "service.yaml"
    write_sweep_copy(options.manifest, manifest, mode="Observe", slowness=1)
    rate_rps = options.rate_rps
    found: list[SchedulingResult] = []
    model = ""
    async with HttpxPodClient() as pods, local_tuner() as tuner:
        for scheduling in SCHEDULINGS:
            async with serving(
                manifest, port=None, tuner=tuner, folder=state_dir(), scheduling=scheduling
            ) as live:
                _say(console, f"{scheduling}: loading {live.service.spec.model.uri}")
                await live.ready.wait()
                model = live.service.spec.model.uri
                limits = httpx.Limits(max_connections=None)
                async with httpx.AsyncClient(base_url=live.place.url, limits=limits) as client:
                    if rate_rps is None:
                        rate_rps = await _calibrated(client, live, options.seed)
                    trial = _Trial(live, pods, client, options, rate_rps)
                    found.append(await trial.run(scheduling))
            _say(console, f"{scheduling}: {found[-1].measured.tokens_per_s:.1f} tokens/s")
    comparison = Comparison(
        model=model,
        machine=machine(),
        rate_rps=rate_rps or 0.0,
        cv=CV,
        seconds=options.seconds,
        found=tuple(found),
    )
    console.print(table(comparison))
    page = write_report(comparison, options.out)
    _say(console, f"report: {page}")
    return page


async def _calibrated(client: httpx.AsyncClient, live: LiveService, seed: int) -> float:
    """The load that every scheduling is offered, from what continuous batching can do."""
    speed = await measure_speed(
        client, model=live.service.served_name, corpus=help_topics(), seed=seed
    )
    return round(UTILIZATION * speed.capacity_rps, _RATE_DIGITS)


@dataclass(frozen=True, slots=True)
class _Trial:
    """One scheduling that serves now."""

    live: LiveService
    pods: PodClient
    client: httpx.AsyncClient
    options: CompareOptions
    rate_rps: float

    async def run(self, scheduling: Scheduling) -> SchedulingResult:
        """Offer the requests, and count what the engine computed for them. Raises SweepError."""
        seconds = self.options.seconds
        requests = plan(
            workload(self.rate_rps), help_topics(), duration_s=seconds, seed=self.options.seed
        )
        if not requests:
            raise SweepError(
                f"--seconds {seconds:g}: no request is due at {self.rate_rps} a second"
            )
        before = await self._load()
        records: list[ClientRecord] = []
        start_at = time.monotonic()
        await drive(
            self.client,
            requests,
            model=self.live.service.served_name,
            sink=records.append,
            timeout_s=max(seconds, _LEAST_PATIENCE_S),
        )
        after = await self._load()
        return SchedulingResult(
            scheduling=scheduling,
            measured=measure(records, start_at, start_at + seconds),
            padding_tokens=after.padding_tokens - before.padding_tokens,
            useful_tokens=after.prompt_tokens
            + after.output_tokens
            - before.prompt_tokens
            - before.output_tokens,
        )

    async def _load(self) -> Load:
        pods = self.live.target.pods
        if not pods:
            raise SweepError(f"{self.live.name} is not ready any more: {self.live.phase}")
        try:
            telemetry = await self.pods.get_telemetry(pods[0], 0)
        except PodError as problem:
            raise SweepError(f"the engine's counts could not be read: {problem}") from problem
        if telemetry.load is None:
            raise SweepError("the engine tells no counts")
        return telemetry.load


def table(comparison: Comparison) -> Table:
    """The figures on a terminal."""
    made = Table(title=f"{comparison.rate_rps:g} requests/s, latencies in ms")
    made.add_column("")
    for found in comparison.found:
        made.add_column(found.scheduling, justify="right")
    made.add_row("tokens/s", *[f"{f.measured.tokens_per_s:.1f}" for f in comparison.found])
    made.add_row(
        "missed", *[f"{f.measured.missed} of {f.measured.offered}" for f in comparison.found]
    )
    made.add_row("padding", *[f"{f.padding_share:.0%}" for f in comparison.found])
    rows = [latency_cells(f.measured) for f in comparison.found]
    for name in ("TTFT", "TPOT", "E2E"):
        for place, share in enumerate(SHARES):
            made.add_row(f"{name} {label(share)}", *[cells[name][place] for cells in rows])
    return made


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
