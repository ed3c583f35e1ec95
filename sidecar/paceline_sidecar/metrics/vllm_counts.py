"""Counts behind the `vllm:` family: its histograms with its own edges."""

from collections import Counter

from paceline_sidecar.metrics.finished_request import FinishedRequest
from paceline_sidecar.metrics.histogram import Histogram

_TTFT_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0),
    *(60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_STEP_TOKENS = tuple(float(2**n) for n in (0, *range(3, 15)))
_MANTISSAS = (1, 2, 5)


def token_edges(max_model_len: int) -> tuple[float, ...]:
    """1-2-5 times the powers of ten, up to the longest sequence."""
    edges = (float(m * 10**exponent) for exponent in range(10) for m in _MANTISSAS)
    return tuple(edge for edge in edges if edge <= max_model_len)


class VllmCounts:
    """Everything recorded at a request's end, except TTFT and the gaps."""

    def __init__(self) -> None:
        self.ttft_s = Histogram(_TTFT_S)
        self.itl_s = Histogram(_TOKEN_S)
        self.tpot_s = Histogram(_TOKEN_S)
        self.e2e_s = Histogram(_REQUEST_S)
        self.queue_s = Histogram(_REQUEST_S)
        self.prefill_s = Histogram(_REQUEST_S)
        self.decode_s = Histogram(_REQUEST_S)
        self.inference_s = Histogram(_REQUEST_S)
        self.iteration_tokens = Histogram(_STEP_TOKENS)
        self.params_n = Histogram((1.0, 2.0, 5.0, 10.0, 20.0))
        self.finished: Counter[str] = Counter()
        self.cached_tokens = 0
        self._size_tokens(())

    def size_to(self, max_model_len: int) -> None:
        """Make the token histograms reach the model's longest sequence; empty when it changes."""
        edges = token_edges(max_model_len)
        if edges != self._edges:
            self._size_tokens(edges)

    def _size_tokens(self, edges: tuple[float, ...]) -> None:
        self._edges = edges
        self.prompt_tokens = Histogram(edges)
        self.generation_tokens = Histogram(edges)
        self.max_generation_tokens = Histogram(edges)
        self.max_tokens_param = Histogram(edges)
        self.computed_tokens = Histogram(edges)

    def ended(self, record: FinishedRequest) -> None:
        """Record one request that the engine had taken."""
        reasons = {"cancelled": "abort", "shed": "abort", "timeout": "abort", "failed": "error"}
        if record.outcome == "ok":
            self.finished[record.finish_reason or "stop"] += 1
            self._completed(record)
        elif record.outcome in reasons:
            self.finished[reasons[record.outcome]] += 1
        self.cached_tokens += record.cached_tokens

    def _completed(self, record: FinishedRequest) -> None:
        self.e2e_s.observe(record.finished_at - record.arrived_at)
        decode_s = 0.0
        if record.tpot_ms is not None:
            decode_s = record.tpot_ms * (record.output_tokens - 1) / 1e3
        # As there: a request of one token has taken no time for tokens after the first.
        self.tpot_s.observe((record.tpot_ms or 0.0) / 1e3)
        self.decode_s.observe(decode_s)
        if record.queue_ms is not None and record.prefill_ms is not None:
            self.queue_s.observe(record.queue_ms / 1e3)
            self.prefill_s.observe(record.prefill_ms / 1e3)
            self.inference_s.observe(record.prefill_ms / 1e3 + decode_s)
        self.prompt_tokens.observe(record.prompt_tokens)
        self.generation_tokens.observe(record.output_tokens)
        if record.longest_choice is not None:
            self.max_generation_tokens.observe(record.longest_choice)
        self.max_tokens_param.observe(record.max_tokens)
        if record.num_choices:
            self.params_n.observe(record.num_choices)
        self.computed_tokens.observe(record.prompt_tokens - record.cached_tokens)
