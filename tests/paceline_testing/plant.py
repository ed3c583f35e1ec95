"""An engine without a model: the real pacer, continuous batching, and a clock that steps move.

Step times come from tables that the fitted form cannot express, with noise and stalls.
"""

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline_engine.pacing import StepShape, make_pacer
from paceline_engine.pacing.lane_pace import Slack
from paceline_engine.scheduling.prefill import MANY_PROMPTS
from paceline_wire import ModelInfo, StepFeatures, StepRecord
from paceline_wire.limits import Capacity, Limits
from paceline_wire.step_cost import chunk_attention

Hardware = Callable[[int, int, int], float]
_STALL_CHANCE = 0.002
_SMALL = (134_515_008, 46_080, "float32")  # parameters, KV bytes per token
_EIGHT_BILLION = (8 * 10**9, 131_072, "bfloat16")


def laptop(decode: int, prefill: int, context: int) -> float:
    """Milliseconds on a CPU: tiles of 16 prompt tokens, dear rows, a bent attention."""
    rows, tiles = 5.0 * math.pow(decode, 0.9), 24.0 * math.ceil(prefill / 16)
    return 28.0 + rows + tiles + 0.02 * math.pow(prefill, 1.3) + context / 400


def gpu(decode: int, prefill: int, context: int) -> float:
    """Milliseconds of an 8B model on an H100: flat, then a staircase of 128-token tiles."""
    tokens = 128 * math.ceil((decode + prefill) / 128)
    return 7.0 + max(0.0, tokens - 200) * 0.029 + context * 4.6e-5 + decode * 0.012


@dataclass(slots=True)
class Job:
    """One request on its way, then ended."""

    arrived_at: float
    prompt: int
    output: int
    name: str = ""
    computed: int = 0
    tokens: int = 0
    first_at: float = 0.0
    last_at: float = 0.0
    outcome: str = ""


@dataclass
class Plant:
    """Clients come at random, steps run one after the other, and what happened is kept."""

    hardware: Hardware
    limits: Limits
    rate: float = 1.0
    prompt: tuple[int, int] = (200, 500)
    output: tuple[int, int] = (16, 48)
    device: str = "cpu"
    capacity: Capacity = field(default_factory=lambda: Capacity(64, 2048, 4096, 16, 4096))
    noise: float = 0.08
    slower: float = 1.0
    shed_after_s: float = math.inf
    seed: int = 1
    now: float = 1000.0
    epoch: int = 0

    def __post_init__(self) -> None:
        parameters, kv_bytes, dtype = _SMALL if self.device == "cpu" else _EIGHT_BILLION
        weights = parameters * (4 if dtype == "float32" else 2)
        info = ModelInfo(
            "m", "llama", "", dtype, self.device, parameters, 1, 4096, 1, [2], kv_bytes, weights
        )
        self.pacer = make_pacer(info, self.capacity)
        self.slack = Slack()
        self.random = random.Random(self.seed)
        self.clients = self.random
        """Set to one of its own where the same clients must come, however many steps are run."""
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.steps: list[StepRecord] = []
        self.ended: list[Job] = []
        self.gaps: list[tuple[float, float]] = []
        """When, and how many milliseconds."""
        self.prompt_tokens = 0
        self.output_tokens = self.arrived = 0
        self.next_arrival = self.now if self.rate else math.inf

    def run_until(self, end: float) -> None:
        """Let clients come and steps run."""
        while self.now < end:
            while self.next_arrival <= self.now:
                prompt, output = self.clients.randint(*self.prompt), self._draw_output()
                self.arrived += 1
                self.waiting.append(Job(self.next_arrival, prompt, output, str(self.arrived)))
                self.next_arrival += self.clients.expovariate(self.rate)
            while self.waiting and self.now - self.waiting[0].arrived_at > self.shed_after_s:
                self._end(self.waiting.popleft(), "shed")
            if self.waiting or self.running:
                self._step()
            else:
                self.now = min(end, self.next_arrival)

    def _draw_output(self) -> int:
        return self.clients.randint(*self.output)

    def _step(self) -> None:
        while self.waiting and len(self.running) < self.limits.max_batch_size:
            self.running.append(self.waiting.popleft())
        decodes = [job for job in self.running if job.computed >= job.prompt]
        prompts = [job for job in self.running if job.computed < job.prompt]
        pace_ms = self.limits.pace_tpot_ms
        shape = StepShape(
            decode=len(decodes),
            context=sum(job.prompt + job.tokens for job in decodes),
            prefill_wanted=sum(job.prompt - job.computed for job in prompts),
            prefill_context=prompts[0].computed if prompts else 0,
            slack_ms=None
            if pace_ms is None or len(prompts) + len(self.waiting) > MANY_PROMPTS
            else self.slack.ms(pace_ms, self.now),
        )
        total = self.pacer.token_total(shape, self.limits)
        prefill = attention = 0
        for job in prompts:
            chunk = min(total - len(decodes) - prefill, job.prompt - job.computed)
            attention += int(chunk_attention(chunk, job.computed))
            job.computed += chunk
            prefill += chunk
        self.prompt_tokens += prefill
        self._spend(shape, prefill, attention, total)
        self.slack.advance()
        for job in decodes + [job for job in prompts if job.computed == job.prompt]:
            self._give_token(job)

    def _spend(self, shape: StepShape, prefill: int, attention: int, total: int) -> None:
        """Take the step's time, and tell the pacer."""
        d, context = shape.decode, shape.context
        predicted_ms = self.pacer.predict_ms(
            StepFeatures(decode=d, prefill=prefill, context=context, attention=attention)
        )
        stall = 2.5 if self.random.random() < _STALL_CHANCE else 1.0
        noise = stall * self.random.lognormvariate(0, self.noise)
        wall_ms = self.slower * noise * self.hardware(d, prefill, context)
        self.now += wall_ms / 1e3
        record = StepRecord(
            seq=len(self.steps) + 1,
            at=self.now,
            wall_ms=wall_ms,
            host_ms=0.1,
            decode=d,
            prefill=prefill,
            context=context,
            attention=attention,
            running=len(self.running),
            waiting=len(self.waiting),
            waiting_tokens=sum(job.prompt for job in self.waiting),
            kv_used=0,
            preemptions=0,
            epoch=self.epoch,
            token_budget=self.limits.token_budget,
            paced_tokens=total,
            predicted_ms=predicted_ms,
            clean=True,
        )
        self.pacer.observe(record, at=self.now)
        self.steps.append(record)

    def _give_token(self, job: Job) -> None:
        if job.tokens:
            self.gaps.append((self.now, (self.now - job.last_at) * 1e3))
        else:
            job.first_at = self.now
            self.slack.begin(job.name, first_at=self.now, generated=1)
        job.last_at, job.tokens = self.now, job.tokens + 1
        self.output_tokens += 1
        if job.tokens >= job.output:
            self.running.remove(job)
            self._end(job, "ok")

    def _end(self, job: Job, outcome: str) -> None:
        self.slack.end(job.name)
        job.outcome, job.last_at = outcome, self.now
        self.ended.append(job)
