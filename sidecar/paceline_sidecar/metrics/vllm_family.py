"""The `vllm:` family: the names that dashboards, autoscalers and gateways already know."""

import time
from collections.abc import Iterator

from prometheus_client.metrics_core import Metric as Family

from paceline_sidecar.metrics.exposition import histograms, values
from paceline_sidecar.metrics.names import VLLM
from paceline_sidecar.metrics.snapshot import Snapshot
from paceline_wire import EngineLoad

_ENGINE = "0"
_FINISHED_REASONS = ("stop", "length", "abort", "error", "repetition")


def vllm_family(seen: Snapshot) -> Iterator[Family]:
    """Those of its metrics that apply here, with its labels and its edges."""
    if seen.load is not None and seen.limits is not None:
        yield from _load(seen, seen.load)
        capacity = seen.limits.capacity
        labels = (_ENGINE, str(capacity.block_size), str(capacity.num_blocks))
        yield values(VLLM["cache_config_info"], [(labels, 1)])
        usage = seen.load.kv_used_blocks / max(1, capacity.num_blocks)
        yield values(VLLM["kv_cache_usage_perc"], [((seen.name, _ENGINE), usage)])
    if seen.loras is not None:
        labels = (str(seen.loras.most), ",".join(seen.loras.waiting), ",".join(seen.loras.running))
        yield values(VLLM["lora_requests_info"], [(labels, time.time())])
    yield from _requests(seen)
    yield from _histograms(seen)


def _load(seen: Snapshot, load: EngineLoad) -> Iterator[Family]:
    one = (seen.name, _ENGINE)
    for name, value in (
        ("num_requests_running", load.running),
        ("num_requests_waiting", load.waiting),
        ("num_preemptions", load.preemptions),
        ("spec_decode_num_drafts", load.drafts),
        ("spec_decode_num_draft_tokens", load.draft_tokens),
        ("spec_decode_num_accepted_tokens", load.accepted_tokens),
        # As there: the sum over the sources below.
        ("prompt_tokens", load.prompt_tokens + load.prefix_hits),
        ("generation_tokens", load.output_tokens),
        ("prefix_cache_queries", load.prefix_queries),
        ("prefix_cache_hits", load.prefix_hits),
        ("prompt_tokens_cached", load.prefix_hits),
    ):
        yield values(VLLM[name], [(one, value)])
    yield values(
        VLLM["spec_decode_num_accepted_tokens_per_pos"],
        (((*one, str(place)), n) for place, n in enumerate(load.accepted_by_position)),
    )
    reasons = {"capacity": load.waiting, "deferred": 0}
    yield values(
        VLLM["num_requests_waiting_by_reason"],
        (((*one, reason), value) for reason, value in reasons.items()),
    )
    sources = {"local_compute": load.prompt_tokens, "local_cache_hit": load.prefix_hits}
    yield values(
        VLLM["prompt_tokens_by_source"],
        (((*one, source), value) for source, value in sources.items()),
    )


def _requests(seen: Snapshot) -> Iterator[Family]:
    finished = seen.ledger.vllm.finished
    yield values(
        VLLM["request_success"],
        (((seen.name, _ENGINE, reason), finished[reason]) for reason in _FINISHED_REASONS),
    )
    refusals = seen.ledger.refusals.items()
    yield values(
        VLLM["admission_rejections"],
        (((seen.name, reason), count) for reason, count in refusals),
    )


def _histograms(seen: Snapshot) -> Iterator[Family]:
    counts = seen.ledger.vllm
    for name, histogram in (
        ("time_to_first_token_seconds", counts.ttft_s),
        ("inter_token_latency_seconds", counts.itl_s),
        ("request_time_per_output_token_seconds", counts.tpot_s),
        ("e2e_request_latency_seconds", counts.e2e_s),
        ("request_queue_time_seconds", counts.queue_s),
        ("request_prefill_time_seconds", counts.prefill_s),
        ("request_decode_time_seconds", counts.decode_s),
        ("request_inference_time_seconds", counts.inference_s),
        ("request_prompt_tokens", counts.prompt_tokens),
        ("request_generation_tokens", counts.generation_tokens),
        ("request_max_num_generation_tokens", counts.max_generation_tokens),
        ("request_params_max_tokens", counts.max_tokens_param),
        ("request_params_n", counts.params_n),
        ("request_prefill_kv_computed_tokens", counts.computed_tokens),
        ("iteration_tokens_total", counts.iteration_tokens),
    ):
        yield histograms(VLLM[name], [((seen.name, _ENGINE), histogram)])
