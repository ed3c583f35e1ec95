"""`paceline bench sweep`: the same load at many limits of one running service, then the tuner."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx
import yaml
from rich.console import Console

from paceline_api.tuning_spec import tuning_spec
from paceline_cli.bench.grid import BATCH_SIZES, TOKEN_BUDGETS, Setting, grid
from paceline_cli.bench.sweep_points import ClientMeasures, Point, Sweep, TunedPoint, measure
from paceline_cli.bench.sweep_report import write_report
from paceline_cli.errors import LocalError
from paceline_cli.fitted_manifest import slowness, write_copy
from paceline_cli.manifest import load
from paceline_cli.place import state_dir
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.traffic.calibration import CV, UTILIZATION, machine, measure_speed, workload
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.offered_load import PlannedRequest, plan
from paceline_cli.traffic.open_loop import drive
from paceline_cli.traffic.record import ClientRecord
from paceline_cli.up.live import LiveService
from paceline_cli.up.serving import local_tuner, serving
from paceline_tuner.pods import PodClient, PodError
from paceline_tuner.service_report import PodReport
from paceline_tuner.service_target import PodTarget

SETTLE_S: Final = 20.0
"""How long the tuner has before its phase is measured, as in the demo."""
_LEASE_S: Final = 120.0
_LEAST_PATIENCE_S: Final = 20.0
_RATE_DIGITS: Final = 3


class SweepError(LocalError):
    """A point could not be measured."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What to run and where to write."""

    manifest: Path
    out: Path
    seed: int
    seconds: float
    """Length of the arrivals at each point."""
    per_axis: int
    rate_rps: float | None = None
    """0.7 of what the service completes when it is full, where None."""
    png: Path | None = None


async def run_sweep(options: SweepOptions, console: Console) -> Path:
    """Serve, sweep, tune, report; the report's path."""
    manifest = options.out / "service.yaml"
    write_sweep_copy(options.manifest, manifest, mode="Observe", slowness=1)
    async with (
        local_tuner() as tuner,
        serving(manifest, port=None, tuner=tuner, folder=state_dir()) as live,
        HttpxPodClient() as pods,
    ):
        live.on_event.append(lambda text: _say(console, text))
        _say(console, f"loading {live.service.spec.model.uri}")
        await live.ready.wait()
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=live.place.url, limits=limits) as client:
            sweep = await _SweepRun(options, live, pods, client, console).run()
    page = write_report(sweep, options.out, png=options.png)
    _say(console, f"report: {page}")
    return page


class _SweepRun:
    """One sweep over one live service."""

    def __init__(
        self,
        options: SweepOptions,
        live: LiveService,
        pods: PodClient,
        client: httpx.AsyncClient,
        console: Console,
    ) -> None:
        self._options = options
        self._live = live
        self._limits = LiveLimits(pods)
        self._client = client
        self._console = console
        self._report: PodReport | None = None
        live.on_report.append(lambda report: self._keep(report.pods))

    async def run(self) -> Sweep:
        """Calibrate, measure each point of the grid, then let the tuner choose."""
        options, live = self._options, self._live
        corpus, model = help_topics(), live.service.served_name
        _say(self._console, "calibrating: how fast does this machine serve?")
        speed = await measure_speed(self._client, model=model, corpus=corpus, seed=options.seed)
        factor = slowness(tuning_spec(live.service.spec).sla, speed)
        note = ""
        if factor != 1:
            note = (
                f"This machine is too slow for the manifest's targets,"
                f" so this run declares them {factor:g} times as long."
            )
            write_sweep_copy(options.manifest, live.path, mode="Observe", slowness=factor)
        wanted = options.rate_rps or UTILIZATION * speed.capacity_rps
        rate_rps = round(wanted, _RATE_DIGITS)
        requests = plan(workload(rate_rps), corpus, duration_s=options.seconds, seed=options.seed)
        if not requests:
            raise SweepError(
                f"--seconds {options.seconds:g}: no request is due at {rate_rps} a second"
            )
        points = [Point(setting, await self._point(setting, requests)) for setting in self._grid()]
        chosen = await self._tuned(requests, factor)
        return Sweep(
            name=live.name,
            model=live.service.spec.model.uri,
            machine=machine(),
            sla=tuning_spec(live.service.spec).sla,
            note=note,
            rate_rps=rate_rps,
            cv=CV,
            seconds=options.seconds,
            points=tuple(points),
            chosen=chosen,
        )

    def _declared(self) -> Setting:
        """The limits that the manifest declares: each axis holds the other's."""
        spec = tuning_spec(self._live.service.spec)
        return Setting(
            "batch_size",
            spec.batch_size.initial or spec.batch_size.max or BATCH_SIZES[-1],
            spec.token_budget.initial or spec.token_budget.max or TOKEN_BUDGETS[-1],
        )

    def _grid(self) -> tuple[Setting, ...]:
        held = self._declared()
        return grid(
            batch_size=held.batch_size,
            token_budget=held.token_budget,
            per_axis=self._options.per_axis,
        )

    async def _point(
        self, setting: Setting, requests: tuple[PlannedRequest, ...]
    ) -> ClientMeasures:
        await self._limits.hold(self._pod(), setting)
        records, start_at = await self._load(requests)
        measured = measure(records, start_at, start_at + self._options.seconds)
        _say(self._console, f"{_words(setting)}: {_line(measured)}")
        return measured

    async def _tuned(
        self, requests: tuple[PlannedRequest, ...], factor: float
    ) -> TunedPoint | None:
        """Hand the limits to the tuner, under the same load, and measure what it settles at."""
        options = self._options
        await self._limits.hold(self._pod(), self._declared())
        write_sweep_copy(options.manifest, self._live.path, mode="Auto", slowness=factor)
        corpus, rate = help_topics(), len(requests) / options.seconds
        whole = plan(
            workload(rate), corpus, duration_s=SETTLE_S + options.seconds, seed=options.seed
        )
        records, start_at = await self._load(whole)
        measured = measure(records, start_at + SETTLE_S, start_at + SETTLE_S + options.seconds)
        pod = self._report
        if pod is None or pod.batch_size is None or pod.token_budget is None:
            return None
        _say(
            self._console,
            f"tuner: batch {pod.batch_size}, tokens {pod.token_budget}: {_line(measured)}",
        )
        return TunedPoint(
            batch_size=pod.batch_size,
            token_budget=pod.token_budget,
            step_target_ms=pod.step_target_ms,
            phase=pod.phase,
            measured=measured,
        )

    async def _load(self, requests: tuple[PlannedRequest, ...]) -> tuple[list[ClientRecord], float]:
        """Offer the requests and wait for their ends; none is waited for longer than a point."""
        records: list[ClientRecord] = []
        start_at = time.monotonic()
        await drive(
            self._client,
            requests,
            model=self._live.service.served_name,
            sink=records.append,
            timeout_s=max(self._options.seconds, _LEAST_PATIENCE_S),
        )
        return records, start_at

    def _pod(self) -> PodTarget:
        pods = self._live.target.pods
        if not pods:
            raise SweepError(f"{self._live.name} is not ready any more: {self._live.phase}")
        return pods[0]

    def _keep(self, pods: tuple[PodReport, ...]) -> None:
        self._report = pods[0] if pods else self._report


class LiveLimits:
    """Sets the limits of one pod while it serves."""

    def __init__(self, pods: PodClient) -> None:
        self._pods = pods
        self._since = 0

    async def hold(self, pod: PodTarget, setting: Setting) -> None:
        """Change both limits, the pacer off, and check that they hold. Raises SweepError."""
        try:
            telemetry = await self._pods.get_telemetry(pod, self._since)
            self._since = telemetry.next  # only the epoch is wanted, not the records
            epoch = telemetry.limits.epoch if telemetry.limits is not None else 0
            answer = await self._pods.patch_limits(
                pod,
                {
                    "max_batch_size": setting.batch_size,
                    "token_budget": setting.token_budget,
                    "step_target_ms": None,
                    "epoch": epoch + 1,
                    "lease_s": _LEASE_S,
                },
            )
        except PodError as problem:
            raise SweepError(f"limits {_words(setting)} could not be set: {problem}") from problem
        held = answer.requested
        if (held.max_batch_size, held.token_budget) != (setting.batch_size, setting.token_budget):
            raise SweepError(
                f"limits {_words(setting)} were asked for, but the pod took"
                f" batch {held.max_batch_size}, tokens {held.token_budget}"
            )


def write_sweep_copy(source: Path, target: Path, *, mode: str, slowness: float) -> None:
    """Copy the manifest with room for the whole grid.

    Nothing is shed, as curves need every wait; and no prefix is shared, as each point is sent the
    prompts of the one before, which would cost nothing.
    """
    service = load(source)  # a bad manifest is refused under its own name
    capacity = service.spec.engine.capacity
    draft = target.with_suffix(".source")
    draft.parent.mkdir(parents=True, exist_ok=True)
    manifest = yaml.safe_load(source.read_text(encoding="utf-8"))
    spec = manifest["spec"]
    engine = spec.setdefault("engine", {})
    engine["prefixCaching"] = False
    engine["capacity"] = {
        "maxBatchSize": max(capacity.max_batch_size, BATCH_SIZES[-1]),
        "maxTokenBudget": max(capacity.max_token_budget, TOKEN_BUDGETS[-1]),
    }
    spec.setdefault("admission", {})["shedHopeless"] = False
    draft.write_text(json.dumps(manifest), encoding="utf-8")  # JSON is YAML too
    write_copy(draft, target, mode=mode, slowness=slowness)
    draft.unlink()


def _words(setting: Setting) -> str:
    return f"batch {setting.batch_size}, tokens {setting.token_budget}"


def _line(measured: ClientMeasures) -> str:
    p99 = ", ".join(
        f"{name} {'max' if value.is_max else 'P99'} {value.ms:,.0f} ms"
        for name, values in measured.latencies()
        for value in values[1:2]
        if value.ms is not None
    )
    missed = f"{measured.missed} of {measured.offered} missed"
    return f"{p99}; {measured.tokens_per_s:.1f} tokens/s; {missed}"


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
