"""The `paceline_*` family: what the engine's and the sidecar's state says at a scrape."""

from collections import Counter
from collections.abc import Iterator
from typing import get_args

from prometheus_client.metrics_core import Metric as Family

from paceline_sidecar import __version__
from paceline_sidecar.adapter_plan import STATES
from paceline_sidecar.admission.rules import most_requests
from paceline_sidecar.hot_config import Sla
from paceline_sidecar.metrics import names
from paceline_sidecar.metrics.exposition import histograms, values
from paceline_sidecar.metrics.ledger import KNOBS, LANES
from paceline_sidecar.metrics.snapshot import Snapshot
from paceline_wire import EngineLoad, StepProfile, WhyEager
from paceline_wire.limits import Capacity, Lane

_NO_PROFILE = StepProfile(took_s=0.0, is_used=False)


def paceline_family(seen: Snapshot) -> Iterator[Family]:
    """Every metric of our own."""
    yield from _requests(seen)
    yield from _promises(seen)
    yield from _limits(seen)
    yield from _load(seen)
    yield from _counters(seen)
    yield from _steps(seen)
    yield from _processes(seen)


def _requests(seen: Snapshot) -> Iterator[Family]:
    name, ledger = seen.name, seen.ledger
    lanes = list(ledger.lanes.items())
    yield histograms(names.TTFT, (((name, lane), one.ttft_s) for lane, one in lanes))
    yield histograms(names.TPOT, (((name, lane), one.tpot_s) for lane, one in lanes))
    yield histograms(names.ITL, (((name, lane), one.itl_s) for lane, one in lanes))
    yield histograms(names.E2E, (((name, lane), one.e2e_s) for lane, one in lanes))
    yield histograms(names.QUEUE, (((name, lane), one.queue_s) for lane, one in lanes))
    yield values(
        names.REQUESTS,
        (
            ((name, lane, outcome), count)
            for lane, one in lanes
            for outcome, count in one.outcomes.items()
        ),
    )
    # Both results of each lane are there from the start: a rate over them is then never empty.
    met = [((name, lane, "met", ""), float(one.met)) for lane, one in lanes]
    missed = [
        ((name, lane, "missed", reason), float(count))
        for lane, one in lanes
        for reason, count in one.missed.items()
    ]
    yield values(names.SLA_REQUESTS, [*met, *missed])
    yield values(names.PROMPT_CLASS, _prompt_classes(seen))
    yield values(names.REFUSALS, (((name, why), n) for why, n in ledger.refusals.items()))
    closed = ledger.refused_connections.items()
    yield values(names.REFUSED_CONNECTIONS, (((name, why), n) for why, n in closed))
    yield values(names.TRACE_SPANS, (((name, why), n) for why, n in seen.spans.items()))
    yield values(names.ABORTS, (((name, why), n) for why, n in ledger.aborts.items()))


def _prompt_classes(seen: Snapshot) -> Iterator[tuple[tuple[str, ...], float]]:
    """Count the requests of the classes that are declared now."""
    for lane, counts in seen.ledger.lanes.items():
        for each in seen.ledger.config.sla_of(lane).ttft_by_prompt_tokens:
            for result, counted in (("met", counts.in_time), ("missed", counts.late)):
                yield (seen.name, lane, each.label, result), float(counted[each.label])


def key_family(seen: Snapshot) -> Iterator[Family]:
    """What each key asks for, where keys are asked for."""
    name, counts = seen.name, seen.ledger.keys
    yield values(names.KEY_REQUESTS, (((name, *row), n) for row, n in counts.requests.items()))
    yield values(names.KEY_TOKENS, (((name, *row), n) for row, n in counts.tokens.items()))


def _promises(seen: Snapshot) -> Iterator[Family]:
    yield values(names.SLA_TARGET, _targets(seen.name, seen.sla))
    yield values(names.BATCH_SLA_TARGET, _targets(seen.name, seen.batch_sla or Sla()))
    targets = (
        ((seen.name, lane, each.label), each.ttft_p99_ms / 1e3)
        for lane in LANES
        for each in seen.ledger.config.sla_of(lane).ttft_by_prompt_tokens
    )
    yield values(names.PROMPT_CLASS_TARGET, targets)
    yield values(names.SLA_OBJECTIVE, [((seen.name,), seen.sla.objective)])


def _limits(seen: Snapshot) -> Iterator[Family]:
    name, state = seen.name, seen.limits
    if state is not None:
        requested, effective = state.requested, state.effective
        yield values(names.LIMIT, (((name, knob), getattr(requested, knob)) for knob in KNOBS))
        yield values(names.EFFECTIVE, (((name, knob), getattr(effective, knob)) for knob in KNOBS))
        capacity = state.capacity
        rows = {
            "max_batch_size": capacity.max_batch_size,
            "token_budget": capacity.max_token_budget,
            "kv_blocks": capacity.num_blocks,
            "model_len": capacity.max_model_len,
        }
        yield values(names.CAPACITY, (((name, knob), value) for knob, value in rows.items()))
        yield values(names.EPOCH, [((name,), state.epoch)])
        expires_at = state.lease_expires_at
        left_s = None if expires_at is None else max(0.0, expires_at - seen.now)
        yield values(names.LEASE, [((name,), left_s)])
        yield values(names.LEASE_LOST, [((name,), float(state.lease_lost))])
    changes = seen.ledger.limit_changes
    yield values(names.LIMIT_CHANGES, (((name, knob), changes[knob]) for knob in KNOBS))


def _load(seen: Snapshot) -> Iterator[Family]:
    name, load, state = seen.name, seen.load, seen.limits
    yield values(names.QUEUED, [((name,), seen.queue.requests)])
    most = most_requests(seen.ledger.config.admission)
    yield values(names.QUEUE_LIMIT, [((name,), most)])
    yield values(names.QUEUED_TOKENS, [((name,), seen.queue.tokens)])
    yield values(names.IN_FLIGHT, [((name,), seen.in_flight)])
    if load is None or state is None:
        return
    yield values(names.RUNNING, _by_lane(name, load.running_by_lane))
    yield values(names.WAITING, _by_lane(name, load.waiting_by_lane))
    yield values(names.WAITING_TOKENS, [((name,), load.waiting_tokens)])
    yield values(names.OLDEST, [((name,), load.oldest_waiting_s)])
    occupancy = load.running / max(1, state.effective.max_batch_size)
    yield values(names.OCCUPANCY, [((name,), occupancy)])
    blocks = max(1, state.capacity.num_blocks)
    yield values(names.KV_USED, [((name,), load.kv_used_blocks / blocks)])
    yield values(names.KV_CACHED, [((name,), load.kv_cached_blocks / blocks)])
    yield values(names.KV_UNFILLED, [((name,), load.kv_unfilled_tokens)])
    fit = _sequences_that_fit(load, state.capacity)
    yield values(names.KV_SEQUENCES, (((name, allocation), fit[allocation]) for allocation in fit))


def _sequences_that_fit(load: EngineLoad, capacity: Capacity) -> dict[str, int | None]:
    """Count them for paged and for preallocated memory; paged is None while nothing runs."""
    longest = -(-capacity.max_model_len // capacity.block_size)
    held = load.kv_used_blocks
    return {
        "paged": capacity.num_blocks * load.running // held if held and load.running else None,
        "preallocated": capacity.num_blocks // longest,
    }


def _counters(seen: Snapshot) -> Iterator[Family]:
    load = seen.load
    if load is None:
        return
    rows = (
        (names.PROMPT_TOKENS, load.prompt_tokens),
        (names.OUTPUT_TOKENS, load.output_tokens),
        (names.PREFIX_QUERIES, load.prefix_queries),
        (names.PREFIX_HITS, load.prefix_hits),
        (names.PREEMPTIONS, load.preemptions),
        (names.DRAFT_TOKENS, load.draft_tokens),
        (names.ACCEPTED_TOKENS, load.accepted_tokens),
        (names.GC_PAUSE, load.gc_pause_ms / 1e3),
    )
    for metric, value in rows:
        yield values(metric, [((seen.name,), value)])
    yield values(names.DISPLACED, [((seen.name,), load.displaced)])
    yield values(names.SWAPPED, [((seen.name,), load.swapped)])
    yield values(names.STUCK_ADMISSIONS, [((seen.name,), load.stuck_admissions)])
    yield values(names.OVERLAP_FALLBACKS, [((seen.name,), load.overlap_fallbacks)])
    yield values(names.BATCH_LANE_PAUSED_STEPS, [((seen.name,), load.batch_lane_paused_steps)])
    yield values(names.GRAPH_STEPS, [((seen.name,), load.graph_steps)])
    yield values(names.GRAPH_MIXED_STEPS, [((seen.name,), load.graph_mixed_steps)])
    fallbacks = ((why, load.graph_fallbacks.get(why, 0)) for why in get_args(WhyEager))
    yield values(names.GRAPH_FALLBACKS, (((seen.name, why), count) for why, count in fallbacks))
    yield values(names.PADDING_TOKENS, [((seen.name,), load.padding_tokens)])
    yield values(names.LANE_PROMPT_TOKENS, _by_lane(seen.name, load.prompt_tokens_by_lane))
    yield values(names.LANE_OUTPUT_TOKENS, _by_lane(seen.name, load.output_tokens_by_lane))


def _steps(seen: Snapshot) -> Iterator[Family]:
    sizes = seen.ledger.step_s.items()
    yield histograms(
        names.STEP,
        (((seen.name, "inf" if size is None else str(size)), one) for size, one in sizes),
    )
    batches = seen.ledger.batches
    yield histograms(names.STEP_SEQUENCES, [((seen.name,), batches.sequences)])
    yield values(names.STEPS, (((seen.name, *row), n) for row, n in batches.steps.items()))
    yield values(
        names.STEPS_SECONDS, (((seen.name, *row), s) for row, s in batches.seconds.items())
    )
    yield values(names.HOST_GAP, [((seen.name,), seen.ledger.host_s)])
    if seen.model is not None:
        yield values(names.MODEL_ERROR, [((seen.name,), seen.model.mape)])
        yield values(names.MODEL_VALID, [((seen.name,), float(seen.model.valid))])
        yield values(names.MODEL_SAMPLES, [((seen.name,), seen.model.samples)])
        profile = seen.view.profile or _NO_PROFILE
        yield values(names.PROFILE, [((seen.name,), profile.took_s)])
        yield values(names.PROFILE_SIZES, [((seen.name,), len(profile.steps))])


def _processes(seen: Snapshot) -> Iterator[Family]:
    name, view = seen.name, seen.view
    yield values(names.ENGINE_UP, [((name,), float(view.phase == "ready"))])
    yield values(names.ENGINE_STARTS, [((name,), seen.ledger.engine_starts)])
    yield values(names.ENGINE_FAULTS, [((name,), seen.ledger.engine_faults)])
    age_s = seen.now - view.heard_at if view.heard_at else None
    yield values(names.TELEMETRY_AGE, [((name,), age_s)])
    standing = Counter(adapter.state for adapter in seen.adapters)
    yield values(names.ADAPTERS, (((name, state), standing[state]) for state in STATES))
    yield values(names.READY, [((name,), float(seen.ready))])
    yield values(names.DRAINING, [((name,), float(seen.draining))])
    yield values(names.BUILD_INFO, [((name, __version__), 1)])


def _targets(name: str, sla: Sla) -> Iterator[tuple[tuple[str, ...], float]]:
    targets = {
        "ttft": sla.ttft_p99_ms,
        "tpot": sla.tpot_p99_ms,
        "itl": sla.itl_p99_ms,
        "e2e": sla.e2e_p99_ms,
    }
    for metric, target_ms in targets.items():
        if target_ms is not None:
            yield (name, metric), target_ms / 1e3


def _by_lane(name: str, counts: dict[str, int]) -> Iterator[tuple[tuple[str, ...], float]]:
    lane: Lane
    for lane in LANES:
        yield (name, lane), counts.get(lane, 0)
