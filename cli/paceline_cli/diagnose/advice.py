"""Which knob or resource would help, with what it would change. Largest cause first."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from paceline_cli.diagnose.engine_time import EngineTime
from paceline_cli.diagnose.latency import Span
from paceline_tuner.pod_view import PodView

_FULL_USE = 0.9  # of λ*: bursts need the rest
_PLANNED_USE = 0.8
_OFTEN_SHARE = 0.1
_LARGE_SHARE = 0.25
_COSTLY_SHARE = 0.5
_SMALL_CACHE = 0.1
_SLOW_CLIENT_MS = 100.0
_CHEAP_RATIO = 1.5  # for twice the tokens
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Advice:
    """One thing to change."""

    lever: str
    """A field of the InferenceService, or a resource."""
    text: str
    """What was found and what the change would do, with numbers."""


def advise(view: PodView, time: EngineTime, spans: tuple[Span, ...]) -> tuple[Advice, ...]:
    """Everything that would help, the most pressing first; empty where nothing stands out."""
    rules = (_floor, _replicas, _kv_memory, _batch_size, _host, _prompts, _client, _batch_is_cheap)
    return tuple(advice for rule in rules for advice in rule(view, time, spans))


def _floor(view: PodView, _: EngineTime, __: tuple[Span, ...]) -> Iterator[Advice]:
    target = view.spec.sla.itl_p99_ms or view.spec.sla.tpot_p99_ms
    floor_ms = view.capacity_model.floor_ms()
    if view.is_trusted and view.target.is_below_floor and target is not None:
        yield Advice(
            "quantization, tensor parallelism or a faster GPU",
            f"one sequence alone takes {ms(floor_ms)} a token and the target is {ms(target)}:"
            " neither limits nor replicas reach it",
        )


def _replicas(view: PodView, time: EngineTime, _: tuple[Span, ...]) -> Iterator[Advice]:
    if not view.is_trusted or time.num_steps == 0:
        return
    arrivals = view.capacity_model.demand.arrival_rps
    capacity = view.capacity_model.sustainable_rps(view.evidence.limits.effective.max_batch_size)
    if capacity <= 0 or arrivals <= _FULL_USE * capacity:
        return
    pods = math.ceil(arrivals / (_PLANNED_USE * capacity))
    yield Advice(
        "replicas",
        f"{arrivals:.2f} requests/s arrive and {capacity:.2f} fit within the SLA:"
        f" {pods} pods would each run at {arrivals / (pods * capacity):.0%}",
    )


def _kv_memory(view: PodView, time: EngineTime, _: tuple[Span, ...]) -> Iterator[Advice]:
    if time.full_kv_share <= _OFTEN_SHARE and not time.num_preemptions:
        return
    capacity, demand = view.evidence.limits.capacity, view.capacity_model.demand
    tokens = capacity.num_blocks * capacity.block_size
    fits = max(1, round(tokens / max(demand.held, 1.0)))
    wanted = view.evidence.limits.effective.max_batch_size
    needed = wanted * demand.held * view.evidence.info.kv_bytes_per_token / _MIB
    bytes_told = f", all {wanted} would need {needed:,.0f} MiB" if needed else ""
    again = (
        f"; {time.num_preemptions} pre-emptions computed {time.recomputed_share:.0%} of the"
        " prompt tokens again"
        if time.num_preemptions
        else ""
    )
    yield Advice(
        "engine.kvCacheMemoryFraction, or replicas",
        f"{tokens:,} tokens of KV hold about {fits} sequences of {demand.held:,.0f}"
        f"{bytes_told}{again}",
    )


def _batch_size(view: PodView, time: EngineTime, spans: tuple[Span, ...]) -> Iterator[Advice]:
    if time.at_limit_share <= _OFTEN_SHARE or not view.is_trusted:
        return
    now = view.evidence.limits.effective.max_batch_size
    most, bound = view.capacity_model.largest_batch(view.evidence.limits.capacity.max_batch_size)
    found = f"in {time.at_limit_share:.0%} of the steps requests waited while {now} ran"
    if most > now:
        full_ms = view.capacity_model.full_step_ms
        yield Advice(
            "tuning.batchSize.max",
            f"{found}: with {most} a full step would take {ms(full_ms(most))}"
            f" instead of {ms(full_ms(now))}, still within the targets",
        )
    elif not any(_replicas(view, time, spans)):
        yield Advice(
            "replicas",
            f"{found}, and no more than {most} are safe ({_BOUNDS[bound]}): only more pods"
            " shorten the queue",
        )


_BOUNDS = {"SLA": "the SLA binds", "KV": "the KV memory binds", "Capacity": "the pod's capacity"}


def _host(view: PodView, time: EngineTime, _: tuple[Span, ...]) -> Iterator[Advice]:
    if time.busy_ms <= 0 or time.host_ms <= _LARGE_SHARE * time.busy_ms:
        return
    per_step = time.host_ms / time.num_steps
    device = view.evidence.info.device or "device"
    yield Advice(
        "resources.cpu of the engine",
        f"the host takes {time.host_ms / time.busy_ms:.0%} of the engine's time,"
        f" {per_step:.2f} ms a step, while the {device} waits: a busy neighbour or too few cores",
    )


def _prompts(view: PodView, time: EngineTime, _: tuple[Span, ...]) -> Iterator[Advice]:
    busy = time.busy_ms
    if busy <= 0 or time.parts.prefill <= _COSTLY_SHARE * busy:
        return
    asked = sum(r.prompt_tokens for r in view.evidence.requests)
    cached = sum(r.cached_tokens for r in view.evidence.requests)
    share = cached / asked if asked else 0.0
    if share < _SMALL_CACHE:
        yield Advice(
            "prefix caching, shorter prompts, or more compute",
            f"prompts take {time.parts.prefill / busy:.0%} of the engine's time and"
            f" {share:.0%} of their tokens were found in the prefix cache",
        )


def _client(_: PodView, __: EngineTime, spans: tuple[Span, ...]) -> Iterator[Advice]:
    for span in spans:
        for part in span.parts:
            if part.name == "client" and part.slow_ms > _SLOW_CLIENT_MS:
                yield Advice(
                    "the client or its network",
                    f"the slowest twentieth take {ms(part.slow_ms)} to read an answer that the"
                    " engine has finished",
                )


def _batch_is_cheap(view: PodView, time: EngineTime, _: tuple[Span, ...]) -> Iterator[Advice]:
    """Where the fixed cost rules and little runs, the pod could take more for almost nothing."""
    rows = time.mean_batch
    is_large = time.parts.fixed > _COSTLY_SHARE * max(time.busy_ms, 1e-9)
    if not view.is_trusted or rows <= 0 or not is_large:
        return
    context = view.capacity_model.demand.context
    one, two = (
        view.capacity_model.forecast.step_ms(
            decode=rows * factor, prefill=0, context=rows * factor * context
        )
        for factor in (1, 2)
    )
    if two <= _CHEAP_RATIO * one:
        # Each bin is corrected by itself, so more tokens may be predicted to take less.
        growth = f"{two / one - 1:+.0%} a step" if two > one else "no longer"
        yield Advice(
            "fewer replicas, more load on each",
            f"{time.parts.fixed / time.busy_ms:.0%} of the engine's time is the fixed cost of"
            f" steps with {rows:.1f} sequences: twice as many would take {growth}",
        )


_WHOLE_FROM_MS = 10.0


def ms(value: float) -> str:
    """Milliseconds with as many digits as count."""
    return f"{value:,.0f} ms" if value >= _WHOLE_FROM_MS else f"{value:.2f} ms"
