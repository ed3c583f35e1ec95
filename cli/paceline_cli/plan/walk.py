"""A walk through a queue: requests of a trace, one pod's limits, and the step model for a clock.

Continuous batching as the engine does it: decodes first, then prompts in order of arrival within
the paced step. Nothing is refused and nothing is preempted: a request waits until its whole
length fits, so waits are those that a client would see without shedding.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random

from paceline_cli.traffic.traces import TracedRequest
from paceline_tuner.forecast import Forecast
from paceline_tuner.service_spec import SLA

_TAIL_Z = 1.64  # q_r covers 95 of 100 steps


@dataclass(frozen=True, slots=True)
class Pod:
    """What the walk takes place on."""

    forecast: Forecast
    batch_size: int
    token_budget: int
    step_target_ms: float | None
    min_prefill: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Walked:
    """Latencies of every request and gap, milliseconds."""

    ttft_ms: tuple[float, ...]
    tpot_ms: tuple[float, ...]
    """0 where an answer has one token."""
    gaps: tuple[tuple[float, int], ...]
    """A gap's length, and how many sequences saw it."""

    def ttft(self, share: float) -> float:
        """The time to first token that `share` of the requests do not exceed."""
        return quantile([(ms, 1) for ms in self.ttft_ms], share)

    def tpot(self, share: float) -> float:
        """The same of the time per output token."""
        return quantile([(ms, 1) for ms in self.tpot_ms if ms > 0], share)

    def itl(self, share: float) -> float:
        """The same of the gaps between tokens."""
        return quantile(self.gaps, share)

    def attainment(self, sla: SLA) -> float:
        """The lesser share, of requests or of gaps, that kept its targets, as the tuner counts."""
        ttft, tpot = sla.ttft_p99_ms or math.inf, sla.tpot_p99_ms or math.inf
        pairs = zip(self.ttft_ms, self.tpot_ms, strict=True)
        kept = sum(first <= ttft and mean <= tpot for first, mean in pairs) / len(self.ttft_ms)
        if sla.itl_p99_ms is None or not self.gaps:
            return kept
        total = sum(count for _, count in self.gaps)
        return min(kept, sum(count for ms, count in self.gaps if ms <= sla.itl_p99_ms) / total)


def quantile(values: Iterable[tuple[float, int]], share: float) -> float:
    """Nearest rank over counted values; 0 without any."""
    ordered = sorted(values)
    left = math.ceil(share * sum(count for _, count in ordered))
    for value, count in ordered:
        left -= count
        if left <= 0:
            return value
    return ordered[-1][0] if ordered else 0.0


def joined(parts: Sequence[Walked]) -> Walked:
    """What several pods saw together."""
    return Walked(
        tuple(ms for part in parts for ms in part.ttft_ms),
        tuple(ms for part in parts for ms in part.tpot_ms),
        tuple(gap for part in parts for gap in part.gaps),
    )


def walk(requests: Sequence[TracedRequest], pod: Pod, seed: int = 1) -> Walked:
    """Serve all requests, in order of arrival; the noise of steps is that of `q_r`, by seed."""
    state = _State(pod, Random(seed))  # noqa: S311 - noise, not a secret
    coming = deque(requests)
    while coming or state.is_busy:
        if not state.is_busy:
            state.now_ms = max(state.now_ms, coming[0].at_s * 1e3)
        while coming and coming[0].at_s * 1e3 <= state.now_ms:
            state.waiting.append(coming.popleft())
        state.step()
    return Walked(tuple(state.ttft_ms), tuple(state.tpot_ms), tuple(state.gaps))


@dataclass(slots=True)
class _Prompt:
    request: TracedRequest
    computed: int = 0


@dataclass(slots=True)
class _State:
    pod: Pod
    random: Random
    now_ms: float = 0.0
    steps: int = 0
    decodes: int = 0
    context: int = 0
    """Tokens of all decodes."""
    held: int = 0
    """Tokens that everything running will hold at its end."""
    waiting: deque[TracedRequest] = field(default_factory=deque)
    prompts: deque[_Prompt] = field(default_factory=deque)
    ends: list[tuple[int, int, float, TracedRequest]] = field(default_factory=list)
    """Decodes by the step of their last token: step, place in `tpot_ms`, first token at."""
    ttft_ms: list[float] = field(default_factory=list)
    tpot_ms: list[float] = field(default_factory=list)
    gaps: list[tuple[float, int]] = field(default_factory=list)

    @property
    def is_busy(self) -> bool:
        return bool(self.decodes or self.prompts or self.waiting)

    def step(self) -> None:
        """Admit, compute one step, hand out its tokens."""
        self._admit()
        decodes = self.decodes
        chunks, prefill, attention = self._chunks()
        sigma = math.log(max(self.pod.forecast.model.q_r, 1.0)) / _TAIL_Z
        noise = math.exp(self.random.gauss(0.0, sigma)) if sigma else 1.0
        took_ms = noise * self.pod.forecast.step_ms(
            decode=decodes, prefill=prefill, context=self.context, attention=attention
        )
        self.now_ms += took_ms
        self.steps += 1
        self.context += decodes
        if decodes:
            self.gaps.append((took_ms, decodes))
        self._end_decodes()
        for prompt, chunk in chunks:
            prompt.computed += chunk
        while self.prompts and self.prompts[0].computed == self.prompts[0].request.prompt:
            self._first_token(self.prompts.popleft().request)

    def _admit(self) -> None:
        while self.waiting and self.decodes + len(self.prompts) < self.pod.batch_size:
            length = self.waiting[0].prompt + self.waiting[0].output
            # One that can never fit is let in alone: the walk must end.
            if self.held + length > self.pod.kv_tokens and self.held:
                return
            self.held += length
            self.prompts.append(_Prompt(self.waiting.popleft()))

    def _chunks(self) -> tuple[list[tuple[_Prompt, int]], int, float]:
        """What this step computes of which prompt; tokens and attention pairs of all."""
        chunks: list[tuple[_Prompt, int]] = []
        prefill, attention = 0, 0.0
        room = self._prefill_room() if self.prompts else 0
        for prompt in self.prompts:
            chunk = min(room - prefill, prompt.request.prompt - prompt.computed)
            if chunk <= 0:
                break
            chunks.append((prompt, chunk))
            prefill += chunk
            attention += chunk * (prompt.computed + chunk / 2)
        return chunks, prefill, attention

    def _prefill_room(self) -> int:
        """Prompt tokens that the pacer leaves to this step."""
        pod = self.pod
        top = max(pod.token_budget - self.decodes, 1)
        if self.decodes == 0 or pod.step_target_ms is None:
            return top
        line_ms = pod.step_target_ms / pod.forecast.model.q_r
        low, high = min(pod.min_prefill, top), top
        before = self.prompts[0].computed
        while low < high:
            middle = (low + high + 1) // 2
            step_ms = pod.forecast.chunk_ms(
                decode=self.decodes, prefill=middle, context=self.context, before=before
            )
            if step_ms <= line_ms:
                low = middle
            else:
                high = middle - 1
        return low

    def _first_token(self, request: TracedRequest) -> None:
        self.ttft_ms.append(self.now_ms - request.at_s * 1e3)
        self.tpot_ms.append(0.0)
        if request.output == 1:
            self.held -= request.prompt + 1
            return
        self.decodes += 1
        self.context += request.prompt + 1
        last = self.steps + request.output - 1
        heappush(self.ends, (last, len(self.tpot_ms) - 1, self.now_ms, request))

    def _end_decodes(self) -> None:
        while self.ends and self.ends[0][0] == self.steps:
            _, place, first_ms, request = heappop(self.ends)
            length = request.prompt + request.output
            self.decodes -= 1
            self.context -= length
            self.held -= length
            self.tpot_ms[place] = (self.now_ms - first_ms) / (request.output - 1)
