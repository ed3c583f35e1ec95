"""Every metric once: name, kind, unit, labels, meaning, as `make crds` writes docs/metrics.md."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of docs/metrics.md. A counter is exposed with `_total` behind its name."""

    name: str
    kind: Kind
    unit: str
    """As people read it; `-` where there is none."""
    labels: tuple[str, ...]
    help: str

    @property
    def exposed(self) -> str:
        """The name that a query uses."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _gauge(name: str, unit: str, help_: str, *labels: str) -> Metric:
    return Metric(f"paceline_{name}", "gauge", unit, ("model_name", *labels), help_)


def _counter(name: str, unit: str, help_: str, *labels: str) -> Metric:
    return Metric(f"paceline_{name}", "counter", unit, ("model_name", *labels), help_)


def _histogram(name: str, unit: str, help_: str, *labels: str) -> Metric:
    return Metric(f"paceline_{name}", "histogram", unit, ("model_name", *labels), help_)


TTFT = _histogram("ttft_seconds", "seconds", "Arrival at the sidecar to the first token.", "lane")
TPOT = _histogram(
    "tpot_seconds",
    "seconds",
    "First to last token of one request, divided by the tokens after the first.",
    "lane",
)
ITL = _histogram("itl_seconds", "seconds", "One gap between two tokens.", "lane")
E2E = _histogram(
    "e2e_seconds", "seconds", "Arrival to the end of a request that was served.", "lane"
)
QUEUE = _histogram("queue_seconds", "seconds", "Arrival to the first chunk in a step.", "lane")
REQUESTS = _counter("requests", "requests", "Requests that ended, by outcome.", "lane", "outcome")
SLA_REQUESTS = _counter(
    "sla_requests",
    "requests",
    "Offered requests that met every target, or missed one and why.",
    "lane",
    "result",
    "reason",
)
PROMPT_CLASS = _counter(
    "prompt_class_requests",
    "requests",
    "Offered requests by class of prompt, and whether the first token came within its target.",
    "lane",
    "up_to",
    "result",
)
REFUSALS = _counter("refusals", "requests", "Requests that were turned away, by reason.", "reason")
REFUSED_CONNECTIONS = _counter(
    "refused_connections",
    "connections",
    "Connections that the server closed with an error, by reason.",
    "reason",
)
KEY_REQUESTS = _counter(
    "key_requests", "requests", "Requests that ended, by the name of their key.", "key", "outcome"
)
KEY_TOKENS = _counter("key_tokens", "tokens", "Tokens of those requests, by kind.", "key", "kind")
TRACE_SPANS = _counter("trace_spans", "spans", "Spans of traces by what became of them.", "result")
ABORTS = _counter("aborts", "requests", "Requests aborted in the engine, by cause.", "cause")

SLA_TARGET = _gauge("sla_target_seconds", "seconds", "Declared p99 target.", "metric")
PROMPT_CLASS_TARGET = _gauge(
    "prompt_class_ttft_target_seconds",
    "seconds",
    "Declared p99 target of the first tokens of a class of prompts.",
    "lane",
    "up_to",
)
BATCH_SLA_TARGET = _gauge(
    "batch_sla_target_seconds", "seconds", "Declared p99 target of the batch lane alone.", "metric"
)
SLA_OBJECTIVE = _gauge("sla_objective", "0 to 1", "Share of requests that must meet every target.")

LIMIT = _gauge("limit", "as the knob", "Live limit as requested.", "knob")
EFFECTIVE = _gauge("limit_effective", "as the knob", "Live limit in force.", "knob")
CAPACITY = _gauge(
    "capacity", "as the knob", "What was allocated at start; no limit is above it.", "knob"
)
LIMIT_CHANGES = _counter("limit_changes", "changes", "Accepted changes of a live limit.", "knob")
EPOCH = _gauge("limits_epoch", "-", "Number of the limits in force.")
LEASE = _gauge("limits_lease_seconds", "seconds", "Seconds until the lease of the limits ends.")
LEASE_LOST = _gauge("limits_lease_lost", "-", "1 after the lease ended without a renewal.")

RUNNING = _gauge("running_requests", "requests", "Sequences that hold KV blocks.", "lane")
WAITING = _gauge("waiting_requests", "requests", "Requests in the engine's queue.", "lane")
WAITING_TOKENS = _gauge("waiting_tokens", "tokens", "Prompt tokens that are not prefilled yet.")
OLDEST = _gauge("oldest_waiting_seconds", "seconds", "Age of the request that waits longest.")
QUEUED = _gauge("queued_requests", "requests", "Admitted requests without a first token.")
QUEUE_LIMIT = _gauge("queue_limit", "requests", "Places of the queue: one more request is refused.")
QUEUED_TOKENS = _gauge(
    "queued_tokens", "tokens", "Prompt tokens of admitted requests without a first token."
)
IN_FLIGHT = _gauge("in_flight_requests", "requests", "HTTP requests that are being answered.")
OCCUPANCY = _gauge(
    "batch_occupancy_ratio", "0 to 1", "Running sequences over the effective max batch size."
)
KV_USED = _gauge("kv_used_ratio", "0 to 1", "KV blocks held by running sequences, over all blocks.")
KV_CACHED = _gauge(
    "kv_cached_ratio", "0 to 1", "Free KV blocks that hold a reusable prefix, over all blocks."
)
KV_UNFILLED = _gauge(
    "kv_unfilled_tokens",
    "tokens",
    "Tokens for which the last KV blocks of running sequences have room that none fills.",
)
KV_SEQUENCES = _gauge(
    "kv_sequences",
    "sequences",
    "Sequences that fit into the KV cache: paged, each as long as the mean of the running ones;"
    " preallocated, each with room for the longest.",
    "allocation",
)
PROMPT_TOKENS = _counter("prompt_tokens", "tokens", "Prompt tokens prefilled by the engine.")
OUTPUT_TOKENS = _counter("output_tokens", "tokens", "Tokens generated by the engine.")
PREFIX_QUERIES = _counter(
    "prefix_query_tokens", "tokens", "Prompt tokens looked up in the prefix cache."
)
PREFIX_HITS = _counter("prefix_hit_tokens", "tokens", "Prompt tokens found in the prefix cache.")
PREEMPTIONS = _counter(
    "preemptions", "preemptions", "Sequences that lost their KV blocks to others."
)
DISPLACED = _counter(
    "displaced_requests", "requests", "Batch requests that gave way to interactive arrivals."
)
SWAPPED = _counter(
    "swapped_requests", "requests", "Preempted sequences whose KV went to host memory."
)
STUCK_ADMISSIONS = _counter(
    "stuck_admissions", "times", "Times that requests waited although a row and blocks were free."
)
OVERLAP_FALLBACKS = _counter(
    "overlap_fallbacks",
    "steps",
    "Steps that waited for the tokens of the one before, although steps overlap.",
)
BATCH_LANE_PAUSED_STEPS = _counter(
    "batch_lane_paused_steps",
    "steps",
    "Steps that decodes of the batch lane left out, as people's prompts needed their part.",
)
GRAPH_STEPS = _counter("graph_steps", "steps", "Steps replayed whole from CUDA graphs.")
GRAPH_MIXED_STEPS = _counter(
    "graph_mixed_steps",
    "steps",
    "Steps with prompts, drafts or padding replayed from CUDA graphs.",
)
GRAPH_FALLBACKS = _counter(
    "graph_fallbacks",
    "steps",
    "Steps computed op by op although others are replayed, by reason.",
    "reason",
)
PADDING_TOKENS = _counter(
    "padding_tokens", "tokens", "Tokens computed only to pad static and dynamic batches."
)
LANE_PROMPT_TOKENS = _counter(
    "lane_prompt_tokens", "tokens", "Prompt tokens prefilled, by lane.", "lane"
)
LANE_OUTPUT_TOKENS = _counter("lane_output_tokens", "tokens", "Tokens generated, by lane.", "lane")
DRAFT_TOKENS = _counter("draft_tokens", "tokens", "Draft tokens that a step computed.")
ACCEPTED_TOKENS = _counter("accepted_tokens", "tokens", "Draft tokens that were accepted.")

STEP = _histogram(
    "step_seconds", "seconds", "One step of the engine, by an upper bound on its tokens.", "tokens"
)
STEP_SEQUENCES = _histogram(
    "step_sequences", "sequences", "Sequences that one step decoded; 0 of a step of prompts alone."
)
STEPS = _counter(
    "steps",
    "steps",
    "Steps by an upper bound on the sequences that they decoded, and by what else they computed.",
    "sequences",
    "kind",
)
STEPS_SECONDS = _counter("steps_seconds", "seconds", "Time of those steps.", "sequences", "kind")
HOST_GAP = _counter(
    "host_gap_seconds", "seconds", "Step time spent on the host: schedule, prepare, settle."
)
GC_PAUSE = _counter(
    "gc_pause_seconds", "seconds", "Pauses of the garbage collector in the step loop."
)
MODEL_ERROR = _gauge(
    "step_model_error_ratio", "0 to 1", "Mean absolute relative error of the step model."
)
MODEL_VALID = _gauge("step_model_valid", "-", "1 while the pacer trusts the step model.")
MODEL_SAMPLES = _gauge("step_model_samples", "steps", "Steps that the model has learned from.")
PROFILE = _gauge(
    "step_profile_seconds", "seconds", "How long the engine measured steps at its start."
)
PROFILE_SIZES = _gauge("step_profile_sizes", "sizes", "Sizes of steps that it measured then.")

ENGINE_UP = _gauge("engine_up", "-", "1 while the engine is ready and sends heartbeats.")
ENGINE_STARTS = _counter(
    "engine_starts", "starts", "Engines that got ready since the sidecar started."
)
ENGINE_FAULTS = _counter(
    "engine_faults", "times", "Times that a ready engine fell silent, or failed: what ran got 503."
)
TELEMETRY_AGE = _gauge("telemetry_age_seconds", "seconds", "Since the engine's last message.")
ADAPTERS = _gauge("adapters", "adapters", "LoRA adapters that were asked for, by state.", "state")
READY = _gauge("ready", "-", "1 while the sidecar takes requests.")
DRAINING = _gauge("draining", "-", "1 after SIGTERM.")
BUILD_INFO = _gauge("build_info", "-", "Always 1; the label says which build this is.", "version")

PACELINE = tuple(value for value in list(vars().values()) if isinstance(value, Metric))


def _vllm(kind: Kind, name: str, unit: str, help_: str, *labels: str) -> Metric:
    return Metric(f"vllm:{name}", kind, unit, ("model_name", "engine", *labels), help_)


VLLM = {
    metric.name.removeprefix("vllm:"): metric
    for metric in (
        _vllm("gauge", "num_requests_running", "requests", "Requests in the running batch."),
        _vllm("gauge", "num_requests_waiting", "requests", "Requests in the queue."),
        _vllm(
            "gauge",
            "num_requests_waiting_by_reason",
            "requests",
            "Requests in the queue.",
            "reason",
        ),
        _vllm("gauge", "kv_cache_usage_perc", "0 to 1", "Share of KV blocks in use, 0 to 1."),
        Metric(
            "vllm:cache_config_info",
            "gauge",
            "-",
            ("engine", "block_size", "num_gpu_blocks"),
            "Always 1; the labels describe the KV cache.",
        ),
        _vllm("counter", "num_preemptions", "preemptions", "Preemptions."),
        Metric(
            "vllm:lora_requests_info",
            "gauge",
            "seconds",
            ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
            "Unix time; the labels name the LoRA adapters of requests.",
        ),
        _vllm("counter", "spec_decode_num_drafts", "drafts", "Drafts that were verified."),
        _vllm(
            "counter",
            "spec_decode_num_accepted_tokens_per_pos",
            "drafts",
            "Drafts whose token at a place was accepted.",
            "position",
        ),
        _vllm(
            "counter", "spec_decode_num_draft_tokens", "tokens", "Draft tokens that were computed."
        ),
        _vllm(
            "counter",
            "spec_decode_num_accepted_tokens",
            "tokens",
            "Draft tokens that were accepted.",
        ),
        _vllm(
            "counter", "prompt_tokens", "tokens", "Prompt tokens, computed or found in the cache."
        ),
        _vllm("counter", "prompt_tokens_by_source", "tokens", "Prompt tokens by source.", "source"),
        _vllm(
            "counter", "prompt_tokens_cached", "tokens", "Prompt tokens found in the prefix cache."
        ),
        _vllm("counter", "generation_tokens", "tokens", "Generated tokens."),
        _vllm("counter", "prefix_cache_queries", "tokens", "Prompt tokens looked up."),
        _vllm("counter", "prefix_cache_hits", "tokens", "Prompt tokens found."),
        _vllm("counter", "request_success", "requests", "Requests that ended.", "finished_reason"),
        Metric(
            "vllm:admission_rejections",
            "counter",
            "requests",
            ("model_name", "reason"),
            "Requests that were turned away.",
        ),
        _vllm("histogram", "time_to_first_token_seconds", "seconds", "Arrival to the first token."),
        _vllm("histogram", "inter_token_latency_seconds", "seconds", "One gap between two tokens."),
        _vllm("histogram", "iteration_tokens_total", "tokens", "Tokens of one step."),
        _vllm("histogram", "e2e_request_latency_seconds", "seconds", "Arrival to the last token."),
        _vllm(
            "histogram", "request_queue_time_seconds", "seconds", "Arrival to the first scheduling."
        ),
        _vllm(
            "histogram",
            "request_prefill_time_seconds",
            "seconds",
            "First scheduling to the first token.",
        ),
        _vllm("histogram", "request_decode_time_seconds", "seconds", "First to last token."),
        _vllm(
            "histogram",
            "request_inference_time_seconds",
            "seconds",
            "First scheduling to the last token.",
        ),
        _vllm(
            "histogram",
            "request_time_per_output_token_seconds",
            "seconds",
            "Mean time per token after the first.",
        ),
        _vllm("histogram", "request_prompt_tokens", "tokens", "Prompt tokens of a request."),
        _vllm("histogram", "request_generation_tokens", "tokens", "Generated tokens of a request."),
        _vllm(
            "histogram",
            "request_max_num_generation_tokens",
            "tokens",
            "Generated tokens of a request's longest choice.",
        ),
        _vllm(
            "histogram", "request_params_max_tokens", "tokens", "`max_tokens`, cut to the context."
        ),
        _vllm("histogram", "request_params_n", "-", "`n`."),
        _vllm(
            "histogram",
            "request_prefill_kv_computed_tokens",
            "tokens",
            "Prompt tokens computed, not found in the prefix cache.",
        ),
    )
}
