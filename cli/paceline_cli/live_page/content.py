"""Everything that the page shows, from the live view, its history and one reading. Pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline_cli.diagnose.advice import Advice
from paceline_cli.live_page.history import Point
from paceline_cli.live_page.reading import Reading
from paceline_cli.sla_targets import all_targets
from paceline_cli.up.loading import loading_stage
from paceline_cli.up.screen import LiveView
from paceline_tuner.service_report import LimitsChange, MeasuredLatency
from paceline_tuner.telemetry import Step

_MAX_BARS = 16
_UNSEEN = MeasuredLatency(None, None, None, 0, None)


@dataclass(frozen=True, slots=True)
class State:
    """Whether the service answers."""

    kind: Literal["loading", "serving", "down"]
    text: str
    fraction: float | None = None
    """How much of a stage of loading is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Latency:
    """One latency beside its target, now and over time."""

    name: str
    target_ms: float | None
    seen_ms: float | None
    client_ms: float | None
    """The demo's own measurement."""
    series: tuple[float | None, ...]
    """One value of each point in `times`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The pod's limits, and what the tuner makes of them."""

    batch_size: int | None = None
    token_budget: int | None = None
    step_target_ms: float | None = None
    phase: str = ""
    binding: str = ""
    verdict: str = ""
    reason: str = ""
    error: str = ""
    """Why telemetry or a change failed."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the pod does now; None is not known."""

    running: int | None = None
    waiting: int | None = None
    oldest_wait_s: float | None = None
    output_tps: float | None = None
    prompt_tps: float | None = None
    kv_share: float | None = None
    """Of its KV blocks, how many are held."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Steps of the last minute that decoded so many sequences."""

    least: int
    most: int
    steps: int


@dataclass(frozen=True, slots=True)
class Content:
    """The page at one moment. Text is text: the page never reads it as HTML."""

    at: float
    """Unix seconds of the newest report; 0 before the first."""
    name: str
    model: str
    url: str
    banner: str
    state: State
    quantile: str
    """Such as `p99`."""
    objective: float
    window_s: float
    mode: str
    attainment: float | None
    samples: int
    latencies: tuple[Latency, ...]
    limits: Limits
    work: Work
    times: tuple[float, ...]
    """Unix seconds of each point of every series."""
    batch_sizes: tuple[int | None, ...]
    token_budgets: tuple[int | None, ...]
    running: tuple[int, ...]
    waiting: tuple[int, ...]
    changes: tuple[LimitsChange, ...]
    """Newest first."""
    histogram: tuple[Bar, ...]
    advice: tuple[Advice, ...]
    advice_note: str
    """What the advice lacks, or why there is none."""
    events: tuple[str, ...]


def content(
    view: LiveView,
    points: Sequence[Point],
    changes: Sequence[LimitsChange],
    reading: Reading | None,
) -> Content:
    """Lay out what is known; what is not known yet is None or empty."""
    seen = view.pod.observed if view.pod else _UNSEEN
    advice, note = _advice(reading)
    return Content(
        at=view.report.at if view.report else 0.0,
        name=view.name,
        model=view.model,
        url=f"{view.url}/v1",
        banner=view.banner,
        state=_state(view.state),
        quantile=f"p{100 * view.spec.sla.objective:g}",
        objective=view.spec.sla.objective,
        window_s=view.spec.window_s,
        mode=view.spec.mode,
        attainment=seen.attainment,
        samples=seen.samples,
        latencies=_latencies(view, seen, points),
        limits=_limits(view),
        work=_work(view, reading),
        times=tuple(point.at for point in points),
        batch_sizes=tuple(point.batch_size for point in points),
        token_budgets=tuple(point.token_budget for point in points),
        running=tuple(point.running for point in points),
        waiting=tuple(point.waiting for point in points),
        changes=tuple(reversed(changes)),
        histogram=histogram(reading.evidence.steps) if reading else (),
        advice=advice,
        advice_note=note,
        events=view.events,
    )


def histogram(steps: Sequence[Step]) -> tuple[Bar, ...]:
    """Count steps by their decoding sequences, in at most sixteen bars of equal width."""
    counts: Counter[int] = Counter()
    for step in steps:
        counts[step.decode] += step.weight
    if not counts:
        return ()
    width = max(counts) // _MAX_BARS + 1
    return tuple(
        Bar(least, least + width - 1, sum(counts[each] for each in range(least, least + width)))
        for least in range(0, max(counts) + 1, width)
    )


def _state(phase: str) -> State:
    loading = loading_stage(phase)
    if loading is not None:
        return State("loading", loading.name, loading.fraction)
    if phase == "loading the model":
        return State("loading", phase)
    return State("serving" if phase == "serving" else "down", phase)


def _latencies(
    view: LiveView, seen: MeasuredLatency, points: Sequence[Point]
) -> tuple[Latency, ...]:
    sla = view.spec.sla
    client = all_targets(sla, view.client) if view.client else []
    at_client = {name: value for name, _, value in client}
    return tuple(
        Latency(
            name=name,
            target_ms=target,
            seen_ms=value,
            client_ms=at_client.get(name),
            series=tuple(point.latencies.get(name) for point in points),
        )
        for name, target, value in all_targets(sla, seen)
    )


def _limits(view: LiveView) -> Limits:
    pod = view.pod
    if pod is None:
        return Limits()
    return Limits(
        batch_size=pod.batch_size,
        token_budget=pod.token_budget,
        step_target_ms=pod.step_target_ms,
        phase=pod.phase,
        binding=pod.binding,
        verdict=pod.verdict,
        reason=pod.reason,
        error=pod.error,
    )


def _work(view: LiveView, reading: Reading | None) -> Work:
    if reading is None:
        pod = view.pod
        return Work(running=pod.running, waiting=pod.waiting) if pod else Work()
    load, capacity = reading.evidence.load, reading.evidence.limits.capacity
    return Work(
        running=load.running,
        waiting=load.waiting,
        oldest_wait_s=load.oldest_waiting_s,
        output_tps=reading.output_tps,
        prompt_tps=reading.prompt_tps,
        kv_share=load.kv_used_blocks / capacity.num_blocks if capacity.num_blocks else None,
    )


def _advice(reading: Reading | None) -> tuple[tuple[Advice, ...], str]:
    if reading is None:
        return (), "nothing is measured yet"
    if reading.diagnosis is None:
        return (), reading.trouble
    return reading.diagnosis.advice, reading.diagnosis.note
