"""`paceline bench sweep`: the same load at many limits of one running service, then the tuner."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console

from paceline_api.inference_service import Spec
from paceline_api.tuning_spec import tuning_spec
from paceline_cli.bench.cells import estimate_cell, lagged, short_quantile
from paceline_cli.bench.endpoint import opened
from paceline_cli.bench.grid import BATCH_SIZES, TOKEN_BUDGETS, Axis, Setting, grid
from paceline_cli.bench.kept_trials import KeptTrials, kept_trials, measurement
from paceline_cli.bench.run import fitting, total
from paceline_cli.bench.run_report import progress
from paceline_cli.bench.served_copy import changed_words, write_served_copy
from paceline_cli.bench.sweep_points import (
    SWEEP_SCHEMA,
    Point,
    Sweep,
    TunedPoint,
    read_sweeps,
)
from paceline_cli.bench.sweep_report import show, write_report
from paceline_cli.bench.traffic_choice import ChosenTraffic, TrafficChoice, chosen_traffic
from paceline_cli.bench.trial import Stretch, Trial, offer, warmed_up
from paceline_cli.errors import LocalError
from paceline_cli.fitted_manifest import slowness
from paceline_cli.manifest import load
from paceline_cli.place import state_dir
from paceline_cli.pod_client import HttpxPodClient
from paceline_cli.traffic.calibration import UTILIZATION, Speed, machine, measure_speed
from paceline_cli.traffic.corpus import help_topics
from paceline_cli.traffic.open_loop import Asking
from paceline_cli.up.live import LiveService
from paceline_cli.up.serving import local_tuner, serving
from paceline_tuner.pods import PodClient, PodError
from paceline_tuner.service_report import PodReport
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget

SETTLE_S: Final = 20.0
"""How long the tuner has before it is measured, as in the demo, unless more is asked for."""
_LEAST_LEASE_S: Final = 120.0
_LEAST_PATIENCE_S: Final = 60.0
_RATE_DIGITS: Final = 3
_SPEED: Final = "speed"
_TUNER: Final = "tuner"


class SweepError(LocalError):
    """A point could not be measured."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What to run and where to write."""

    manifest: Path
    out: Path
    traffic: TrafficChoice
    per_axis: int
    png: Path | None = None
    beside: tuple[Path, ...] = ()
    """Results of the same sweep on other machines, for a table."""
    settle_s: float = SETTLE_S
    """How long the tuner has the same traffic before it is measured."""
    axis: Axis | None = None
    """Sweep this limit alone."""
    resume: bool = False
    """Whether points that an earlier run left in the folder count."""


async def run_sweep(options: SweepOptions, console: Console) -> Path:
    """Serve, sweep, tune, report; the report's path."""
    others = read_sweeps(options.beside)
    asked = {
        **measurement("sweep", options.manifest, options.traffic),
        "settle_s": f"{options.settle_s:g}",
    }
    kept = kept_trials(options.out / "trials", asked, resume=options.resume)
    manifest = options.out / "service.yaml"
    write_served_copy(options.manifest, manifest, mode="Observe", slowness=1)
    async with (
        local_tuner() as tuner,
        serving(manifest, port=None, tuner=tuner, folder=state_dir()) as live,
        HttpxPodClient() as pods,
    ):
        live.on_event.append(lambda text: _say(console, text))
        _say(console, f"loading {live.service.spec.model.uri}")
        await live.ready.wait()
        async with opened(live.place.url) as client:
            sweep = await _SweepRun(options, live, pods, client, console, kept=kept).run()
    show(sweep, console)
    page = write_report(sweep, options.out, png=options.png, others=others)
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
        *,
        kept: KeptTrials,
    ) -> None:
        self._options = options
        self._live = live
        self._pods = pods
        self._limits = LiveLimits(pods)
        self._client = client
        self._kept = kept
        self._console = console
        self._report: PodReport | None = None
        live.on_report.append(lambda report: self._keep(report.pods))

    async def run(self) -> Sweep:
        """Calibrate, measure each point of the grid, then let the tuner choose."""
        options, live = self._options, self._live
        factor, note, chosen = await self._calibrated()
        settings = self._grid()
        left = [each for each in settings if not self._kept.has(_trial(each))]
        if note:
            _say(self._console, note)
        num_kept = len(settings) - len(left)
        settle_s = options.settle_s
        _say(self._console, planned_time(chosen, len(left), num_kept=num_kept, settle_s=settle_s))
        for setting in left:
            place = f"point {settings.index(setting) + 1} of {len(settings)}"
            self._kept.keep(_trial(setting), await self._point(setting, chosen, place))
        star = await self._star(chosen, factor)
        return Sweep(
            schema=SWEEP_SCHEMA,
            name=live.name,
            model=live.service.spec.model.uri,
            machine=machine(),
            device=await self._device(),
            sla=self._sla,
            note=note,
            traffic=chosen.words,
            seed=options.traffic.seed,
            warmup=_warmup_words(chosen.stretch, settle_s),
            points=tuple(self._kept.read(_trial(each), Point) for each in settings),
            chosen=star,
        )

    @property
    def _sla(self) -> SLA:
        return tuning_spec(self._live.service.spec).sla

    async def _calibrated(self) -> tuple[float, str, ChosenTraffic]:
        """How much longer targets must be here, why, and the traffic of every point."""
        options, live = self._options, self._live
        if not self._kept.has(_SPEED):
            _say(self._console, "calibrating: how fast does this machine serve?")
            measured = await measure_speed(
                self._client,
                model=live.service.served_name,
                corpus=help_topics(),
                seed=options.traffic.seed,
            )
            self._kept.keep(_SPEED, measured)
        speed = self._kept.read(_SPEED, Speed)
        factor = slowness(self._sla, speed)
        note = changed_words(load(options.manifest).spec, options.traffic, factor)
        if factor != 1:
            write_served_copy(options.manifest, live.path, mode="Observe", slowness=factor)
            live.file_changed()
        traffic = fitting(options.traffic, live.service.spec.engine.max_model_len)
        rate = round(UTILIZATION * speed.capacity_rps, _RATE_DIGITS)
        return factor, note, chosen_traffic(traffic, rate if traffic.needs_rate else None)

    def _grid(self) -> tuple[Setting, ...]:
        held = declared_limits(self._live.service.spec)
        settings = grid(
            batch_size=held.batch_size,
            token_budget=held.token_budget,
            per_axis=self._options.per_axis,
        )
        axis = self._options.axis
        return tuple(each for each in settings if axis is None or each.axis == axis)

    async def _point(self, setting: Setting, chosen: ChosenTraffic, place: str) -> Point:
        await self._limits.hold(self._pod(), setting, lease_s=lease_s(chosen.stretch))
        trial = await self._offer(chosen, place)
        _say(self._console, f"{place}, {_words(setting)}: {_line(trial)}")
        return Point(setting, trial.measures, client_lagged=trial.client.is_saturated)

    async def _star(self, chosen: ChosenTraffic, factor: float) -> TunedPoint | None:
        if self._kept.has(_TUNER):
            return self._kept.read(_TUNER, TunedPoint)
        star = await self._tuned(chosen, factor)
        if star is not None:
            self._kept.keep(_TUNER, star)
        return star

    async def _tuned(self, chosen: ChosenTraffic, factor: float) -> TunedPoint | None:
        """Hand the limits to the tuner, let it settle, and measure it on the same requests."""
        options = self._options
        declared = declared_limits(self._live.service.spec)
        await self._limits.hold(self._pod(), declared, lease_s=_LEAST_LEASE_S)
        write_served_copy(options.manifest, self._live.path, mode="Auto", slowness=factor)
        trial = await self._offer(settled(chosen, options.settle_s), "the tuner's")
        pod = self._report
        if pod is None or pod.batch_size is None or pod.token_budget is None:
            return None
        _say(
            self._console,
            f"tuner: batch {pod.batch_size}, tokens {pod.token_budget}: {_line(trial)}",
        )
        return TunedPoint(
            batch_size=pod.batch_size,
            token_budget=pod.token_budget,
            step_target_ms=pod.step_target_ms,
            phase=pod.phase,
            measured=trial.measures,
            client_lagged=trial.client.is_saturated,
        )

    async def _offer(self, chosen: ChosenTraffic, what: str) -> Trial:
        """Offer the requests and wait for their ends; none is waited for longer than a point."""
        asking = Asking(
            self._live.service.served_name,
            timeout_s=max(chosen.stretch.seconds, _LEAST_PATIENCE_S),
        )
        requests = chosen.requests(help_topics(), self._options.traffic.seed)
        with progress(self._console, total(requests), what) as on_record:
            return await offer(
                self._client, requests, asking, chosen.stretch, self._sla, on_record=on_record
            )

    async def _device(self) -> str:
        """What computes, as the engine names it."""
        try:
            info = (await self._pods.get_telemetry(self._pod(), 0)).info
        except PodError:
            return ""
        return info.device if info is not None else ""

    def _pod(self) -> PodTarget:
        pods = self._live.target.pods
        if not pods:
            raise SweepError(f"{self._live.name} is not ready any more: {self._live.phase}")
        return pods[0]

    def _keep(self, pods: tuple[PodReport, ...]) -> None:
        self._report = pods[0] if pods else self._report


def declared_limits(spec: Spec) -> Setting:
    """Read the limits that a manifest declares: each axis holds the other's."""
    tuning = tuning_spec(spec)
    return Setting(
        "batch_size",
        tuning.batch_size.initial or tuning.batch_size.max or BATCH_SIZES[-1],
        tuning.token_budget.initial or tuning.token_budget.max or TOKEN_BUDGETS[-1],
    )


def lease_s(stretch: Stretch) -> float:
    """Limits are held for longer than a trial takes, its last answers included."""
    return max(_LEAST_LEASE_S, 3 * (stretch.warmup_s + stretch.seconds))


def settled(chosen: ChosenTraffic, settle_s: float = SETTLE_S) -> ChosenTraffic:
    """Give the tuner time to settle as its warm-up; what is measured stays the same."""
    stretch = chosen.stretch
    if stretch.concurrency is not None:
        return chosen
    return replace(chosen, stretch=replace(stretch, warmup_s=max(stretch.warmup_s, settle_s)))


def planned_time(
    chosen: ChosenTraffic, num_points: int, *, num_kept: int = 0, settle_s: float = SETTLE_S
) -> str:
    """Say how long a sweep takes, and of what."""
    stretch = chosen.stretch
    before = f"{num_kept} points were measured before; " if num_kept else ""
    if stretch.concurrency is not None:
        return f"{before}{num_points} points and the tuner's: {chosen.words}"
    whole_s = num_points * (stretch.warmup_s + stretch.seconds)
    whole_s += settled(chosen, settle_s).stretch.warmup_s + stretch.seconds
    return (
        f"{before}{num_points} points and the tuner's,"
        f" {stretch.warmup_s + stretch.seconds:.0f} s each:"
        f" about {max(1, round(whole_s / 60))} minutes; {chosen.words}"
    )


def _warmup_words(stretch: Stretch, settle_s: float) -> str:
    words = warmed_up(stretch, stretch.warmup_requests)
    if stretch.concurrency is not None:
        return words
    return (
        f"The first {stretch.warmup_s:.3g} s at each point were warm-up of the same traffic and"
        f" are in no figure; the tuner had {max(stretch.warmup_s, settle_s):.3g} s to settle."
    )


class LiveLimits:
    """Sets the limits of one pod while it serves."""

    def __init__(self, pods: PodClient) -> None:
        self._pods = pods
        self._since = 0

    async def hold(
        self, pod: PodTarget, setting: Setting, *, lease_s: float = _LEAST_LEASE_S
    ) -> None:
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
                    "lease_s": lease_s,
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


def _trial(setting: Setting) -> str:
    return f"{setting.axis} {setting.batch_size} {setting.token_budget}"


def _words(setting: Setting) -> str:
    return f"batch {setting.batch_size}, tokens {setting.token_budget}"


def _line(trial: Trial) -> str:
    measured = trial.measures
    p99 = ", ".join(
        f"{latency.name} p99 {short_quantile(latency.at(0.99))} ms"
        for latency in measured.latencies
    )
    attained = (
        f"{estimate_cell(measured.attainment, 1, scale=100)} % attained, "
        if measured.attainment.value is not None
        else ""
    )
    tokens = f"{estimate_cell(measured.output_tokens_per_s, 1)} tokens/s"
    unanswered = f"{measured.unanswered} of {measured.offered} unanswered"
    return f"{attained}{tokens}; {p99}; {unanswered}{lagged(trial.client.is_saturated)}"


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
