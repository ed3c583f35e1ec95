"""Limits that change every few steps while the engine is full: nothing is lost, nothing leaks."""

import random
from collections.abc import Iterator

from gpu_suite import names, shapes
from gpu_suite.machine import Machine
from gpu_suite.record import Figure
from gpu_suite.requests import answers, engine_of, submit, uniform
from paceline_wire import SetLimits

MODEL = "qwen2.5-0.5b"
_EVERY = 3
"""Steps."""


def measure(machine: Machine) -> Iterator[Figure]:
    """Change batch size and token budget at random, the smallest included."""
    loaded = shapes.load(MODEL, machine)
    engine, source = engine_of(loaded), random.Random(3)
    asked = uniform(machine, loaded.info.vocab_size, seed=2)
    for number, one in enumerate(asked):
        submit(engine, number, one)
    refused: list[str] = []

    def change(step: int) -> None:
        if step % _EVERY:
            return
        wanted = SetLimits(
            call=step,
            epoch=step + 1,
            max_batch_size=source.randint(1, loaded.capacity.max_batch_size),
            token_budget=source.randint(16, loaded.capacity.max_token_budget),
        )
        error = engine.set_limits(wanted).error
        if error is not None:
            refused.append(error)

    given = answers(engine, before_step=change)
    if refused:
        raise RuntimeError(f"a change of limits was refused: {refused[0]}")
    # Too few and too many both count.
    lost = sum(
        abs(one.num_output - len(given.get(str(number), []))) for number, one in enumerate(asked)
    )
    steps = engine.counters.steps
    yield Figure(names.LOST, lost, "tokens", f"{len(asked)} requests, {steps:,} steps")
    yield Figure(
        names.LEAKED,
        engine.load().kv_used_blocks,
        "blocks",
        f"limits changed every {_EVERY} steps",
    )
