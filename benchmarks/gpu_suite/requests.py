"""What the engines are asked: prompts, lengths, and the loop that asks ours."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from gpu_suite.machine import Machine
from paceline_engine.engine.engine import Engine, EngineOptions
from paceline_engine.loading.load import LoadedModel
from paceline_engine.pacing.pacer import NoPacer
from paceline_wire import Sampling, Submit
from paceline_wire.limits import Limits

TOKEN_BUDGET = 8192
TEMPERATURE = 0.6
"""As in nano-vllm's benchmark."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    prompt: list[int]
    num_output: int


def uniform(machine: Machine, vocab_size: int, *, seed: int = 0) -> list[Asked]:
    """256 requests, prompts and outputs of 100 to 1024 tokens, as nano-vllm is measured."""
    number, low, high = (6, 3, 12) if machine.is_dry else (256, 100, 1024)
    source = random.Random(seed)
    return [
        Asked(prompt(source, source.randint(low, high), vocab_size), source.randint(low, high))
        for _ in range(number)
    ]


def prompt(source: random.Random, length: int, vocab_size: int) -> list[int]:
    """Random tokens: no engine can gain from shared prefixes."""
    return [source.randrange(vocab_size) for _ in range(length)]


def engine_of(loaded: LoadedModel, *, overlaps: bool = True) -> Engine:
    """Make an engine around a loaded model, as its process would, with all of its capacity."""
    capacity = loaded.capacity
    limits = Limits(
        max_batch_size=capacity.max_batch_size,
        token_budget=min(TOKEN_BUDGET, capacity.max_token_budget),
    )
    return Engine(
        loaded.runner,
        loaded.info,
        capacity,
        NoPacer(),
        limits=limits,
        clock=time.perf_counter,
        options=EngineOptions(overlap=overlaps),
    )


def submit(engine: Engine, number: int, asked: Asked, *, temperature: float = TEMPERATURE) -> None:
    """Ask; an end of sequence does not end it."""
    sampling = Sampling(max_tokens=asked.num_output, temperature=temperature, ignore_eos=True)
    engine.submit(Submit(str(number), asked.prompt, sampling, arrived_at=time.perf_counter()))


def answers(
    engine: Engine, *, before_step: Callable[[int], None] = lambda _step: None
) -> dict[str, list[int]]:
    """Step until everything is answered; the tokens of each request. Raises RuntimeError."""
    given: dict[str, list[int]] = {}
    step = 0
    while not engine.is_idle:
        before_step(step)
        step += 1
        for output in engine.step():
            if output.error is not None:
                raise RuntimeError(f"request {output.id} failed: {output.error}")
            given.setdefault(output.id, []).extend(output.token_ids)
    return given
