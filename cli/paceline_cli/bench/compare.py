"""`paceline bench compare`: the same traffic under each way of batching, one after the other."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import httpx
from rich.console import Console
from rich.table import Table

from paceline_api.tuning_spec import tuning_spec
from paceline_api.units import seconds
from paceline_cli.bench.arms import Arm, arms
from paceline_cli.bench.cells import LEGEND, estimate_cell, lagged, quantile_cell
from paceline_cli.bench.compare_report import write_report
from paceline_cli.bench.comparison import COMPARE_SCHEMA, ArmResult, Comparison, Series, series_of
from paceline_cli.bench.endpoint import opened
from paceline_cli.bench.kept_trials import KeptTrials, kept_trials, measurement
from paceline_cli.bench.measures import NAMES
from paceline_cli.bench.run import fitting, total
from paceline_cli.bench.run_report import progress
from paceline_cli.bench.served_copy import REQUEST_TIMEOUT_S, changed_words, write_served_copy
from paceline_cli.bench.sweep import (
    SETTLE_S,
    LiveLimits,
    SweepError,
    declared_limits,
    lease_s,
    settled,
)
from paceline_cli.bench.traffic_choice import ChosenTraffic, TrafficChoice, chosen_traffic
from paceline_cli.bench.trial import OnRecord, Trial, offer
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
from paceline_tuner.service_spec import SLA
from paceline_tuner.service_target import PodTarget
from paceline_tuner.telemetry import Load

PADDING: Final = "Padding is its share of all tokens computed."
_LEAST_WIDTH: Final = 150
_SPEED: Final = "speed"
"""The name under which the calibration is kept."""


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """What to run and where to write."""

    manifest: Path
    out: Path
    traffic: TrafficChoice
    loads: tuple[float, ...] = (0.5, 1.0, 1.5)
    """Multiples of the rate."""
    max_wait_s: float | None = None
    """How long a dynamic batch waits for requests, at most; as in the manifest where None."""
    static_batch: int | None = None
    """How many requests a static batch waits for; the max batch size where None."""
    resume: bool = False
    """Whether trials that an earlier run left in the folder count."""
    png: Path | None = None


@dataclass(frozen=True, slots=True)
class _Played:
    """What is kept of one trial."""

    found: ArmResult
    series: Series


@dataclass(frozen=True, slots=True)
class _Fitted:
    """The targets that this machine can keep, and the load that it can take."""

    model: str
    sla: SLA
    factor: float
    note: str
    traffic: TrafficChoice
    """With its rate."""


async def run_compare(options: CompareOptions, console: Console) -> Path:
    """Serve in each way, offer the same requests at each load, report; the report's path."""
    manifest = options.out / "service.yaml"
    max_wait_s = longest_wait_s(options)
    kept = _kept(options, max_wait_s)
    fitted = await _fitted(options, manifest, kept, console)
    chosen = {load: settled(chosen_traffic(_at(fitted.traffic, load))) for load in options.loads}
    ways = arms(max_wait_s, options.static_batch)
    left = {
        arm.name: {
            load: each for load, each in chosen.items() if not kept.has(_trial(arm.name, load))
        }
        for arm in ways
    }
    if fitted.note:
        _say(console, fitted.note)
    _say(console, planned_time(ways, left))
    trials = [_trial(arm.name, load) for arm in ways for load in options.loads]

    def place(arm: str, load: float) -> str:
        return f"trial {trials.index(_trial(arm, load)) + 1} of {len(trials)}"

    for arm in ways:
        if left[arm.name]:
            write_served_copy(options.manifest, manifest, mode=arm.mode, slowness=fitted.factor)

            def watched(
                load: float, count: int, arm: str = arm.name
            ) -> AbstractContextManager[OnRecord]:
                return progress(console, count, place(arm, load))

            def ended(played: _Played) -> None:
                found = played.found
                kept.keep(_trial(found.arm, found.load), played)
                where = f"{place(found.arm, found.load)}, {found.arm}, load {found.load:g}"
                _say(console, f"{where}: {line(found)}")

            await _serve(arm, manifest, left[arm.name], fitted, ended, watched=watched)
    played_all = [
        kept.read(_trial(arm.name, load), _Played) for arm in ways for load in options.loads
    ]
    comparison = Comparison(
        schema=COMPARE_SCHEMA,
        model=fitted.model,
        machine=machine(),
        sla=fitted.sla,
        note=fitted.note,
        traffic=chosen_traffic(fitted.traffic).words,
        seed=options.traffic.seed,
        warmup=f"At least {SETTLE_S:g} s before each figure were warm-up, the same for all.",
        arms={arm.name: arm.what for arm in ways},
        found=tuple(each.found for each in played_all),
        series=tuple(each.series for each in played_all),
    )
    console.width = max(console.width, _LEAST_WIDTH)
    console.print(table(comparison))
    _say(console, f"{PADDING} {LEGEND}")
    page = write_report(comparison, options.out, png=options.png)
    _say(console, f"report: {page}")
    return page


def longest_wait_s(options: CompareOptions) -> float:
    """Read how long a dynamic batch waits, in seconds: as asked for, else as in the manifest."""
    if options.max_wait_s is not None:
        return options.max_wait_s
    return seconds(load(options.manifest).spec.engine.dynamic.max_wait)


def planned_time(ways: Sequence[Arm], left: Mapping[str, Mapping[float, ChosenTraffic]]) -> str:
    """Say how long a comparison takes, of the trials that are left of each way and load."""
    num_kept = sum(not left[arm.name] for arm in ways)
    kept = f", {num_kept} of them measured before" if num_kept else ""
    what = f"{len(ways)} ways of batching{kept}"
    trials = [(arm, each.stretch) for arm in ways for each in left[arm.name].values()]
    if any(stretch.concurrency is not None for _, stretch in trials):
        return f"{what}; {len(trials)} trials are left"
    whole_s = sum(each.warmup_s + each.seconds + arm.last_wait_s for arm, each in trials)
    return f"{what}; about {round(whole_s / 60)} minutes are left"


def _kept(options: CompareOptions, max_wait_s: float) -> KeptTrials:
    """Open what earlier runs left; each load is a trial of its own."""
    asked = {
        **measurement("compare", options.manifest, options.traffic),
        "max_wait_s": f"{max_wait_s:g}",
        "static_batch": f"{options.static_batch}",
    }
    return kept_trials(options.out / "trials", asked, resume=options.resume)


def _trial(arm: str, load: float) -> str:
    return f"{arm} load {load:g}"


async def _serve(
    arm: Arm,
    manifest: Path,
    chosen: Mapping[float, ChosenTraffic],
    fitted: _Fitted,
    on_played: Callable[[_Played], None],
    *,
    watched: Callable[[float, int], AbstractContextManager[OnRecord]],
) -> None:
    """Serve in one way, and offer the requests of each load."""
    async with (
        HttpxPodClient() as pods,
        local_tuner() as tuner,
        serving(
            manifest, port=None, tuner=tuner, folder=state_dir(), engine_settings=arm.engine
        ) as live,
    ):
        await live.ready.wait()
        limits = LiveLimits(pods)
        async with opened(live.place.url) as client:
            for load, traffic in chosen.items():
                if arm.batch_size is not None:
                    held = replace(declared_limits(live.service.spec), batch_size=arm.batch_size)
                    await limits.hold(_pod(live), held, lease_s=lease_s(traffic.stretch))
                trial, counts = await _play(
                    live, pods, client, traffic, fitted, watched=partial(watched, load)
                )
                on_played(
                    _Played(_result(arm, load, trial, counts), series_of(arm.name, load, trial))
                )


async def _fitted(
    options: CompareOptions, manifest: Path, kept: KeptTrials, console: Console
) -> _Fitted:
    """Read off continuous batching's speed: the load of all is a share of what it can do."""
    if not kept.has(_SPEED):
        kept.keep(_SPEED, await _speed(options, manifest, console))
    speed = kept.read(_SPEED, Speed)
    spec = load(options.manifest).spec
    declared = tuning_spec(spec).sla
    factor = slowness(declared, speed)
    traffic = fitting(options.traffic, spec.engine.max_model_len)
    if traffic.needs_rate:
        traffic = replace(traffic, rate_rps=float(f"{UTILIZATION * speed.capacity_rps:.3g}"))
    note = changed_words(spec, options.traffic, factor)
    return _Fitted(spec.model.uri, _longer(declared, factor), factor, note, traffic)


async def _speed(options: CompareOptions, manifest: Path, console: Console) -> Speed:
    """Measure how fast the service is as the manifest declares it."""
    write_served_copy(options.manifest, manifest, mode="Observe", slowness=1)
    async with (
        local_tuner() as tuner,
        serving(manifest, port=None, tuner=tuner, folder=state_dir()) as live,
    ):
        _say(console, f"loading {live.service.spec.model.uri}, and calibrating")
        await live.ready.wait()
        async with opened(live.place.url) as client:
            return await measure_speed(
                client,
                model=live.service.served_name,
                corpus=help_topics(),
                seed=options.traffic.seed,
            )


def _longer(sla: SLA, factor: float) -> SLA:
    """The targets as the copies of the manifest declare them."""

    def times(target_ms: float | None) -> float | None:
        return None if target_ms is None else round(target_ms * factor)

    return replace(
        sla,
        ttft_p99_ms=times(sla.ttft_p99_ms),
        tpot_p99_ms=times(sla.tpot_p99_ms),
        itl_p99_ms=times(sla.itl_p99_ms),
        ttft_by_prompt_tokens=tuple(
            replace(each, ttft_p99_ms=round(each.ttft_p99_ms * factor))
            for each in sla.ttft_by_prompt_tokens
        ),
    )


def _at(traffic: TrafficChoice, load: float) -> TrafficChoice:
    """The same traffic at another load: bursts become larger, a closed loop has more at once."""
    if traffic.burst is not None:
        count = max(1, round(traffic.burst.count * load))
        return replace(traffic, burst=replace(traffic.burst, count=count))
    if traffic.concurrency is not None:
        return replace(traffic, concurrency=max(1, round(traffic.concurrency * load)))
    if traffic.rate_rps is None:
        return replace(traffic, rate_rps=chosen_traffic(traffic).load.rate_rps * load)
    return replace(traffic, rate_rps=traffic.rate_rps * load)


async def _play(
    live: LiveService,
    pods: PodClient,
    client: httpx.AsyncClient,
    chosen: ChosenTraffic,
    fitted: _Fitted,
    *,
    watched: Callable[[int], AbstractContextManager[OnRecord]],
) -> tuple[Trial, tuple[Load, Load]]:
    """Offer the requests, and read what the engine computed before and after."""
    before = await _load(live, pods)
    stretch = chosen.stretch
    asking = Asking(live.service.served_name, timeout_s=max(stretch.seconds, REQUEST_TIMEOUT_S))
    requests = chosen.requests(help_topics(), fitted.traffic.seed)
    with watched(total(requests)) as on_record:
        trial = await offer(client, requests, asking, stretch, fitted.sla, on_record=on_record)
    return trial, (before, await _load(live, pods))


def _result(arm: Arm, load: float, trial: Trial, counts: tuple[Load, Load]) -> ArmResult:
    before, after = counts
    return ArmResult(
        arm=arm.name,
        load=load,
        measured=trial.measures,
        padding_tokens=after.padding_tokens - before.padding_tokens,
        useful_tokens=after.prompt_tokens
        + after.output_tokens
        - before.prompt_tokens
        - before.output_tokens,
        client_lagged=trial.client.is_saturated,
    )


async def _load(live: LiveService, pods: PodClient) -> Load:
    try:
        telemetry = await pods.get_telemetry(_pod(live), 0)
    except PodError as problem:
        raise SweepError(f"the engine's counts could not be read: {problem}") from problem
    if telemetry.load is None:
        raise SweepError("the engine tells no counts")
    return telemetry.load


def _pod(live: LiveService) -> PodTarget:
    found = live.target.pods
    if not found:
        raise SweepError(f"{live.name} is not ready any more: {live.phase}")
    return found[0]


def table(comparison: Comparison) -> Table:
    """The figures on a terminal."""
    made = Table(title="Latency in ms", title_justify="left")
    for head in ("batching", "load", "attainment %", "goodput tok/s", "all tok/s", "padding"):
        made.add_column(head, justify="left" if head == "batching" else "right", no_wrap=True)
    for name in NAMES:
        made.add_column(f"{name} p99", justify="right", no_wrap=True)
    for found in comparison.found:
        measured = found.measured
        made.add_row(
            f"{found.arm}{lagged(found.client_lagged)}".replace(", the", "\nthe"),
            f"{found.load:g}",
            estimate_cell(measured.attainment, 1, scale=100).replace(" (", "\n("),
            estimate_cell(measured.goodput_tokens_per_s, 1).replace(" (", "\n("),
            estimate_cell(measured.output_tokens_per_s, 1).replace(" (", "\n("),
            f"{found.padding_share:.0%}",
            *[quantile_cell(each.at(0.99)).replace(" (", "\n(") for each in measured.latencies],
        )
    return made


def line(found: ArmResult) -> str:
    """Sum a trial up as it ends."""
    measured = found.measured
    return (
        f"{estimate_cell(measured.attainment, 1, scale=100)} % attained,"
        f" {estimate_cell(measured.output_tokens_per_s, 1)} tokens/s,"
        f" {found.padding_share:.0%} padding{lagged(found.client_lagged)}"
    )


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False, highlight=False)
