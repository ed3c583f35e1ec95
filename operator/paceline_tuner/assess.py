"""Whether the SLA can be kept on this pod, and what stands in the way. Pure."""

from dataclasses import dataclass

import numpy as np

from paceline_tuner.attainment import MIN_SAMPLES, class_places
from paceline_tuner.capacity import within
from paceline_tuner.condition import Obstacle
from paceline_tuner.lanes import judged
from paceline_tuner.pod_view import PodView
from paceline_tuner.propose import LimitsProposal
from paceline_tuner.records import column, quantile
from paceline_tuner.throughput import throughput
from paceline_tuner.window import Evidence

_DEGRADED = 1.2
_FULL = 0.9  # of the batch size: below, it is not what bounds the pod
_QUEUED_SHARE = 0.8  # of the steps: the queue never empties
_MIN_STEPS = 20
_LONGEST_SHARE = 0.99


@dataclass(frozen=True, slots=True)
class Assessment:
    """What one decision sees; an obstacle is believed only when it persists."""

    obstacle: Obstacle
    capacity_rps: float | None
    """λ* under the proposed limits; None without a trusted step model.

    At most what the pod serves while it misses the SLA with a full batch.
    """


def assess(view: PodView, proposal: LimitsProposal) -> Assessment:
    """Name what keeps the SLA from being met under the proposed limits, or nothing.

    Requests that missed count, in the last minute and in the whole burn window: a slow gap is the
    pace's matter, and a bad minute within a good burn window is a burst.
    """
    if not view.is_trusted:
        return Assessment("", None)
    capacity_model = view.capacity_model
    top = within(
        capacity_model.capacity.max_batch_size,
        view.spec.batch_size,
        capacity_model.capacity.max_batch_size,
    )
    capacity_rps = capacity_model.sustainable_rps(
        capacity_model.serving_batch(proposal.limits.batch_size, top)
    )
    burn, objective, now = view.state.burn, view.spec.sla.objective, view.evidence.now
    obstacle = _floor(view)
    is_burning = burn.is_burning(objective, now)
    if not obstacle and is_burning and burn.is_spent(objective):
        obstacle = (
            _overload(view, proposal, capacity_rps) or _conflict(view, proposal) or _bursts(view)
        )
    if is_burning and (served_rps := _served_when_full_rps(view, proposal)):
        # While the SLA is kept, a queue is no news of λ*: the batch lane's may never empty.
        capacity_rps = min(capacity_rps, served_rps)
    return Assessment(obstacle, capacity_rps)


def _served_when_full_rps(view: PodView, proposal: LimitsProposal) -> float | None:
    """Measure what the pod serves with its batch full and requests waiting; None where it has room.

    Tokens are counted, not the requests that ended well: those that gave up were computed, too. The
    times of steps do not tell: between steps the engine may wait for a core that others have.
    """
    evidence = view.evidence
    if not _queue_never_empties(evidence):
        return None
    running = column(evidence.steps, "running")
    num_full = int(np.count_nonzero(running >= _FULL * proposal.limits.batch_size))
    measured = throughput(evidence)
    if num_full <= _QUEUED_SHARE * len(running) or measured is None or not measured.output_tps:
        return None
    return measured.output_tps / max(view.state.demand.output, 1.0)


def _floor(view: PodView) -> Obstacle:
    """One request alone misses its target."""
    if view.target.is_below_floor:
        return "TPOTFloor"
    if any(view.capacity_model.ttft_floor_ms(p.tokens) > p.target_ms for p in _prompts(view)):
        return "TTFTFloor"
    e2e_ms = view.spec.sla.e2e_p99_ms
    if e2e_ms is not None and view.capacity_model.e2e_floor_ms() > e2e_ms:
        return "E2EFloor"
    return ""


def _overload(view: PodView, proposal: LimitsProposal, capacity_rps: float) -> Obstacle:
    """More arrives than the pod can serve."""
    arrivals_rps, slowdown = view.state.demand.arrival_rps, view.state.slowdown.ratio
    if arrivals_rps <= capacity_rps and not _queue_never_empties(view.evidence):
        return ""
    if slowdown > _DEGRADED and arrivals_rps <= capacity_rps * slowdown:
        return "DegradedHardware"
    is_full = view.evidence.load.running >= _FULL * proposal.limits.batch_size
    return "KVBound" if proposal.batch_bound == "KV" and is_full else "CapacityExceeded"


def _conflict(view: PodView, proposal: LimitsProposal) -> Obstacle:
    """Keeping the pace of what runs leaves too little for prompts."""
    limits = proposal.limits
    running = min(limits.batch_size, max(1, view.evidence.load.running))
    for prompt in _prompts(view):
        prefill_ms = view.capacity_model.prefill_ms(
            decode=running, budget=limits.token_budget, prompt=prompt.tokens
        )
        if prefill_ms > prompt.target_ms:
            return "TTFTvsTPOTConflict"
    return ""


@dataclass(frozen=True, slots=True)
class _Prompt:
    """The longest usual prompt that a first-token target is for."""

    target_ms: float
    tokens: float
    """To compute."""


def _prompts(view: PodView) -> list[_Prompt]:
    """List one for each class of prompts that the window shows enough of."""
    sla = view.spec.sla
    if sla.ttft_p99_ms is None:
        return []
    if not sla.ttft_by_prompt_tokens:
        return [_Prompt(sla.ttft_p99_ms, view.state.demand.prompt_p99)]
    requests = judged(view.spec, view.evidence).requests
    is_ok, weights = column(requests, "is_ok") > 0, column(requests, "weight")
    computed = column(requests, "prompt_tokens") - column(requests, "cached_tokens")
    places = class_places(sla, requests)
    found = []
    for place, each in enumerate(sla.ttft_by_prompt_tokens):
        mine = is_ok & (places == place)
        longest = quantile(computed[mine], weights[mine], _LONGEST_SHARE)
        if longest is not None and weights[mine].sum() >= MIN_SAMPLES:
            found.append(_Prompt(each.ttft_p99_ms, max(longest, 1.0)))
    return found


def _bursts(view: PodView) -> Obstacle:
    """What arrives fits on average, and five minutes of the best limits have not kept the SLA."""
    spec = view.spec
    follows_model = spec.mode == "Auto" and not spec.paused and not view.is_missing_pace
    is_lost = view.state.burn.is_lost(spec.sla.objective, view.evidence.now)
    return "CapacityExceeded" if follows_model and is_lost else ""


def _queue_never_empties(evidence: Evidence) -> bool:
    steps = evidence.steps
    if len(steps) < _MIN_STEPS or evidence.load.waiting == 0:
        return False
    if column(steps, "at")[0] > evidence.now - 0.5 * evidence.window_s:
        return False  # a burst is not a load
    return int(np.count_nonzero(column(steps, "waiting") > 0)) > _QUEUED_SHARE * len(steps)
