"""The demo: a violated SLA under bursty load, and the tuner that brings it back."""

import asyncio
import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from paceline_api.tuning_spec import tuning_spec
from paceline_cli.demo.demo_run import DemoRun, TunerSample, Verdict, judge, opening
from paceline_cli.demo.report import write_report
from paceline_cli.fitted_manifest import slowness, write_copy
from paceline_cli.live_page.server import page_of
from paceline_cli.place import state_dir
from paceline_cli.traffic.calibration import (
    CV,
    UTILIZATION,
    Speed,
    machine,
    measure_speed,
    workload,
)
from paceline_cli.traffic.client_span import span
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import plan
from paceline_cli.traffic.open_loop import Asking, drive_open
from paceline_cli.traffic.record import ClientRecord
from paceline_cli.up.live import LiveService
from paceline_cli.up.screen import LiveView
from paceline_cli.up.serving import local_tuner, serving
from paceline_cli.up.terminal import save_svg, shown
from paceline_tuner.service_report import LimitsChange, ServiceReport

BEFORE_S: Final = 40.0
SETTLE_S: Final = 20.0
JUDGED_S: Final = 60.0
_SHOWN_S: Final = 20.0
_RATE_DIGITS: Final = 3


@dataclass(frozen=True, slots=True)
class Demo:
    """What to run and where to write."""

    manifest: Path
    out: Path
    seed: int
    svg: Path | None = None
    png: Path | None = None
    series_json: Path | None = None
    has_page: bool = True
    """Whether the live table is also a page in the browser."""


async def run_demo(demo: Demo, console: Console) -> Verdict:
    """Serve, load, violate, tune, judge, report."""
    manifest = demo.out / "service.yaml"
    write_copy(demo.manifest, manifest, mode="Observe", slowness=1)
    async with (
        local_tuner() as tuner,
        serving(manifest, port=None, tuner=tuner, folder=state_dir()) as live,
    ):
        act = Act(live, demo)
        async with page_of(live, act.view) if demo.has_page else contextlib.nullcontext():
            with shown(console, live, act.view):
                await live.ready.wait()
                run = await act.play()
        if demo.svg:
            save_svg(act.view(), demo.svg)
    verdict = judge(run.sla, run.after(), run.last_observed())
    page = write_report(run, verdict, demo.out, png=demo.png, series_json=demo.series_json)
    console.print(opening(run.sla, run.before().observed(run.sla)), soft_wrap=True, highlight=False)
    console.print(f"report: {page}", soft_wrap=True, highlight=False)
    return verdict


class Act:
    """One run of the demo over a live service."""

    def __init__(self, live: LiveService, demo: Demo) -> None:
        self._live = live
        self._demo = demo
        self._banner = "Loading the model."
        self._slowness = 1.0
        self._records: list[ClientRecord] = []
        self._samples: list[TunerSample] = []
        self._changes: dict[tuple[float, str], LimitsChange] = {}
        live.on_report.append(self._observe)

    def view(self) -> LiveView:
        """The live table, with what the client sees."""
        view = replace(self._live.view(), banner=self._banner)
        if not self._records:
            return view
        now = time.monotonic()
        recent = span(self._records, now - _SHOWN_S, now)
        return replace(view, client=recent.observed(view.spec.sla))

    async def play(self) -> DemoRun:
        """Calibrate, then load through both phases."""
        corpus = help_topics()
        model = self._live.service.served_name
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self._live.place.url, limits=limits) as client:
            self._banner = "Calibrating: how fast does this machine serve?"
            speed = await measure_speed(client, model=model, corpus=corpus, seed=self._demo.seed)
            note = self._fit_sla(speed)
            rate_rps = round(UTILIZATION * speed.capacity_rps, _RATE_DIGITS)
            requests = plan(
                workload(rate_rps),
                corpus,
                duration_s=BEFORE_S + SETTLE_S + JUDGED_S,
                seed=self._demo.seed,
            )
            start_at = time.monotonic()
            async with asyncio.TaskGroup() as group:
                load_task = group.create_task(
                    drive_open(client, requests, Asking(model), self._records.append)
                )
                await self._phases(rate_rps, start_at)
                await load_task
        border_at = start_at + BEFORE_S
        return DemoRun(
            name=self._live.name,
            model=self._live.service.spec.model.uri,
            machine=machine(),
            sla=tuning_spec(self._live.service.spec).sla,
            rate_rps=rate_rps,
            speed=speed,
            note=note,
            cv=CV,
            start_at=start_at,
            border_at=border_at,
            judged_from=border_at + SETTLE_S,
            end_at=border_at + SETTLE_S + JUDGED_S,
            records=tuple(self._records),
            samples=tuple(self._samples),
            changes=tuple(self._changes.values()),
        )

    def _fit_sla(self, speed: Speed) -> str:
        """Declare a looser SLA where this machine could not keep the manifest's at any setting."""
        declared = tuning_spec(self._live.service.spec).sla
        factor = slowness(declared, speed)
        if factor == 1:
            return ""
        note = (
            f"This machine takes {speed.decode_ms:.0f} ms for one token alone and"
            f" {speed.prefill_ms:.1f} ms for each token of a prompt: too slow for the manifest's"
            f" targets, so this run declares them {factor:g} times as long."
        )
        self._live.note(note)
        write_copy(self._demo.manifest, self._live.path, mode="Observe", slowness=factor)
        self._slowness = factor
        return note

    async def _phases(self, rate_rps: float, start_at: float) -> None:
        load = f"{rate_rps:.2f} requests/s in bursts (CV {CV:g})"
        self._banner = f"1 of 2: limits as declared, the tuner only watches. {load}."
        await _until(start_at + BEFORE_S)
        # The file is edited, as a person would: the change takes the same way.
        write_copy(self._demo.manifest, self._live.path, mode="Auto", slowness=self._slowness)
        self._banner = f"2 of 2: tuning.mode is now Auto. {load}."
        await _until(start_at + BEFORE_S + SETTLE_S + JUDGED_S)

    def _observe(self, report: ServiceReport) -> None:
        for pod in report.pods:
            self._samples.append(
                TunerSample(
                    at=time.monotonic(),
                    batch_size=pod.batch_size,
                    token_budget=pod.token_budget,
                    step_target_ms=pod.step_target_ms,
                    observed=pod.observed,
                )
            )
        self._changes |= {(change.at, change.pod): change for change in reversed(report.history)}


async def _until(at: float) -> None:
    await asyncio.sleep(max(0.0, at - time.monotonic()))
