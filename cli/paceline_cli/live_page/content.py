"""What the page shows of a service of this machine, from its live view and one reading. Pure."""

from collections.abc import Sequence

from paceline_cli.live_page.reading import Reading
from paceline_cli.sla_targets import all_targets
from paceline_cli.up.loading import loading_stage
from paceline_cli.up.screen import LiveView
from paceline_page.content import (
    Change,
    Content,
    Help,
    History,
    Latency,
    Limits,
    Point,
    State,
    Work,
    histogram,
)
from paceline_tuner.service_report import LimitsChange, MeasuredLatency
from paceline_tuner.throughput import finished_rps

_UNSEEN = MeasuredLatency(None, None, None, 0, None)


def content(
    view: LiveView,
    points: Sequence[Point],
    changes: Sequence[LimitsChange],
    reading: Reading | None,
) -> Content:
    """Lay out what is known; what is not known yet is None or empty."""
    seen = view.pod.observed if view.pod else _UNSEEN
    advice, note = _advice(reading)
    steps = reading.evidence.steps if reading else ()
    return Content(
        at=view.report.at if view.report else 0.0,
        name=view.name,
        about=f"{view.model} · {view.url}/v1",
        state=_state(view.state),
        quantile=f"p{100 * view.spec.sla.objective:g}",
        objective=view.spec.sla.objective,
        window_s=view.spec.window_s,
        attainment=seen.attainment,
        samples=seen.samples,
        latencies=_latencies(view, seen, points),
        limits=_limits(view),
        work=_work(view, reading),
        history=History.of(points),
        changes=tuple(_change(each) for each in reversed(changes)),
        histogram=histogram((step.decode, step.weight) for step in steps),
        advice=advice,
        advice_note=note,
        events=view.events,
        banner=view.banner,
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
            series=tuple(point.latencies.get(name) for point in points),
            client_ms=at_client.get(name),
        )
        for name, target, value in all_targets(sla, seen)
    )


def _limits(view: LiveView) -> Limits:
    pod, mode = view.pod, view.spec.mode
    if pod is None:
        return Limits(mode=mode)
    return Limits(
        batch_size=pod.batch_size,
        token_budget=pod.token_budget,
        step_target_ms=pod.step_target_ms,
        mode=mode,
        phase=pod.phase,
        binding=pod.binding,
        verdict=pod.verdict,
        reason=pod.reason,
        error=pod.error,
    )


def _work(view: LiveView, reading: Reading | None) -> Work:
    cost = view.report.cost if view.report else None
    per_million = cost.per_million_output if cost else None
    if reading is None:
        pod = view.pod
        return Work(
            running=pod.running if pod else None,
            waiting=pod.waiting if pod else None,
            cost_per_million_output=per_million,
        )
    load, capacity = reading.evidence.load, reading.evidence.limits.capacity
    return Work(
        running=load.running,
        waiting=load.waiting,
        oldest_wait_s=load.oldest_waiting_s,
        output_tps=reading.output_tps,
        prompt_tps=reading.prompt_tps,
        finished_rps=finished_rps(reading.evidence),
        kv_share=load.kv_used_blocks / capacity.num_blocks if capacity.num_blocks else None,
        cost_per_million_output=per_million,
    )


def _change(change: LimitsChange) -> Change:
    return Change(
        at=change.at,
        from_batch_size=change.from_batch_size,
        from_token_budget=change.from_token_budget,
        to_batch_size=change.to_batch_size,
        to_token_budget=change.to_token_budget,
        reason=change.reason,
    )


def _advice(reading: Reading | None) -> tuple[tuple[Help, ...], str]:
    if reading is None:
        return (), "nothing is measured yet"
    if reading.diagnosis is None:
        return (), reading.trouble
    found = reading.diagnosis.advice
    return tuple(Help(each.lever, each.text) for each in found), reading.diagnosis.note
