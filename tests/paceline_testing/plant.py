"""A pod without a model: real pacer, continuous batching with chunked prefill, a clock it moves.

Step times come from a table that the fitted form cannot express, with noise and stalls.
"""

import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec

from paceline_engine.limits import Capacity, Limits, clamp
from paceline_engine.pacing import StepShape, make_pacer
from paceline_engine.wire import ModelInfo, StepRecord
from paceline_operator import telemetry as t
from paceline_operator.pods import PodUnreachableError
from paceline_operator.tuning.model import PodTarget

ALPHA = 0.01
LOG_GAMMA = math.log((1 + ALPHA) / (1 - ALPHA))
Hardware = Callable[[int, int, int], float]


def laptop(decode: int, prefill: int, context: int) -> float:
    """Milliseconds on a CPU: tiles of 16 prompt tokens, dear rows, a bent attention."""
    tiles = math.ceil(prefill / 16)
    return 28 + 5.0 * decode**0.9 + 24 * tiles + 0.02 * prefill**1.3 + context / 400


def gpu(decode: int, prefill: int, context: int) -> float:
    """Milliseconds of an 8B model on an H100: flat, then a staircase of 128-token tiles."""
    tokens = 128 * math.ceil((decode + prefill) / 128)
    return 7.0 + max(0.0, tokens - 200) * 0.029 + context * 4.6e-5 + decode * 0.012


@dataclass(slots=True)
class Job:
    """One request on its way."""

    arrived_at: float
    prompt: int
    output: int
    done: int = 0
    tokens: int = 0
    first_at: float = 0.0
    last_at: float = 0.0


@dataclass
class Plant:
    """One pod: a PodClient's other end, for any pod's name."""

    hardware: Hardware
    limits: Limits
    rate: float = 1.0
    prompt: tuple[int, int] = (32, 300)
    output: tuple[int, int] = (16, 48)
    device: str = "cpu"
    noise: float = 0.08
    slower: float = 1.0
    shed_after_s: float = math.inf
    is_down: bool = False
    seed: int = 1
    now: float = 1000.0
    instance: str = "a"
    config_hash: str = ""
    capacity: Capacity = field(default_factory=lambda: Capacity(64, 2048, 4096, 16, 4096))
    bodies: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        info = ModelInfo("m", "llama", "", "float32", self.device, 134_515_008, 49_152, 4096, 1,
                         [2], 46_080, 538_060_032)  # fmt: skip
        if self.device != "cpu":
            info = msgspec.structs.replace(info, num_parameters=8 * 10**9, kv_bytes_per_token=131_072,
                                           weight_bytes=16 * 10**9, dtype="bfloat16")  # fmt: skip
        self.pacer = make_pacer(info, self.capacity)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.steps: list[t.Step] = []
        self.requests: list[t.RequestRecord] = []
        self.slices: dict[float, dict[str, int]] = {}
        self.seq = self.output_tokens = 0
        self.next_arrival = self.now

    def run_until(self, end: float) -> None:
        """Let clients come and steps run."""
        while self.now < end:
            while self.next_arrival <= self.now:
                self.waiting.append(
                    Job(self.next_arrival, self.random.randint(*self.prompt), self.random.randint(*self.output))
                )
                self.next_arrival += self.random.expovariate(self.rate) if self.rate else math.inf
            while self.waiting and self.now - self.waiting[0].arrived_at > self.shed_after_s:
                self._record(self.waiting.popleft(), "shed")
            if self.waiting or self.running:
                self._step()
            else:
                self.now = min(end, self.next_arrival)

    def come(self, rate: float) -> None:
        """Change how many clients come."""
        self.rate, self.next_arrival = rate, self.now

    def _step(self) -> None:
        while self.waiting and len(self.running) < self.limits.max_batch_size:
            self.running.append(self.waiting.popleft())
        decodes = [job for job in self.running if job.done >= job.prompt]
        prefills = [job for job in self.running if job.done < job.prompt]
        context = sum(job.prompt + job.tokens for job in decodes)
        wanted = sum(job.prompt - job.done for job in prefills)
        before = prefills[0].done if prefills else 0
        total = self.pacer.token_total(StepShape(len(decodes), context, wanted, before), self.limits)
        room, prefill, attention, firsts = total - len(decodes), 0, 0, []
        for job in prefills:
            chunk = min(room - prefill, job.prompt - job.done)
            attention += int(chunk * (job.done + chunk / 2))
            job.done += chunk
            prefill += chunk
            if chunk > 0 and job.done == job.prompt:
                firsts.append(job)
        self._finish_step(decodes, firsts, prefill, context, attention, total)

    def _finish_step(
        self, decodes: list[Job], firsts: list[Job], prefill: int, context: int, attention: int, total: int
    ) -> None:
        d = len(decodes)
        predicted = self.pacer.predict_ms(decode=d, prefill=prefill, context=context, attention=attention)
        stall = 2.5 if self.random.random() < 0.002 else 1.0
        wall = self.slower * stall * self.hardware(d, prefill, context) * self.random.lognormvariate(0, self.noise)
        self.now += wall / 1e3
        self.seq += 1
        waiting_tokens = sum(job.prompt for job in self.waiting)
        record = StepRecord(self.seq, self.now, wall, 0.1, d, prefill, context, attention, len(self.running),
                            len(self.waiting), waiting_tokens, 0, 0, self.limits.epoch, self.limits.token_budget,
                            total, predicted, clean=True)  # fmt: skip
        self.pacer.observe(record)
        self.steps.append(msgspec.convert(msgspec.structs.asdict(record), t.Step))
        for job in decodes + firsts:
            if job.tokens:
                bins = self.slices.setdefault(self.now // 5 * 5, {})
                place = str(math.ceil(math.log((self.now - job.last_at) * 1e3) / LOG_GAMMA))
                bins[place] = bins.get(place, 0) + 1
            job.first_at = job.first_at or self.now
            job.last_at, job.tokens = self.now, job.tokens + 1
            self.output_tokens += 1
            if job.tokens >= job.output:
                self.running.remove(job)
                self._record(job, "ok")

    def _record(self, job: Job, outcome: str) -> None:
        self.seq += 1
        ok = outcome == "ok"
        self.requests.append(t.RequestRecord(
            seq=self.seq, arrived_at=job.arrived_at, finished_at=self.now, prompt_tokens=job.prompt,
            output_tokens=job.tokens, outcome=outcome, epoch=self.limits.epoch,
            ttft_ms=(job.first_at - job.arrived_at) * 1e3 if ok else None,
            tpot_ms=(job.last_at - job.first_at) / (job.tokens - 1) * 1e3 if job.tokens > 1 else None,
        ))  # fmt: skip

    def _limits(self) -> t.LimitsAnswer:
        values = t.LimitValues(self.limits.max_batch_size, self.limits.token_budget, self.limits.step_target_ms)
        capacity = msgspec.convert({name: getattr(self.capacity, name) for name in
            ("max_batch_size", "max_token_budget", "num_blocks", "block_size", "max_model_len")}, t.CapacityValues)  # fmt: skip
        return t.LimitsAnswer(values, values, values, capacity, self.limits.epoch, config_hash=self.config_hash)

    async def get_telemetry(self, pod: PodTarget, since: int) -> t.Telemetry:
        """Answer as a sidecar does."""
        if self.is_down:
            raise PodUnreachableError(f"pod {pod.name}: no answer")
        load = t.Load(len(self.running), len(self.waiting), sum(job.prompt for job in self.waiting),
                      output_tokens=self.output_tokens)  # fmt: skip
        model = msgspec.convert(msgspec.structs.asdict(self.pacer.info()), t.ModelFit)
        return t.Telemetry(
            instance=self.instance, now=self.now, next=self.seq, lost=0, ready=True, limits=self._limits(), load=load,
            model=model, info=t.EngineInfo(device=self.device),
            steps=tuple(step for step in self.steps[-4000:] if step.seq > since),
            requests=tuple(record for record in self.requests[-2000:] if record.seq > since),
            sketches=tuple(t.SketchSlice("itl_ms", "interactive", start, ALPHA, 0, dict(bins))
                           for start, bins in sorted(self.slices.items())[-24:]),
        )  # fmt: skip

    async def patch_limits(self, pod: PodTarget, body: Mapping[str, object]) -> t.LimitsAnswer:
        """Change what differs, if the epoch is not old."""
        if self.is_down:
            raise PodUnreachableError(f"pod {pod.name}: no answer")
        values = dict(body)
        self.bodies.append(dict(body))
        names = {"max_batch_size", "token_budget", "step_target_ms", "epoch"} & values.keys()
        changed = replace(self.limits, **{name: values[name] for name in names})  # type: ignore[arg-type]  # JSON's values
        self.limits, _ = clamp(changed, self.capacity)
        self.config_hash = str(values.get("config_hash", self.config_hash))
        return self._limits()
