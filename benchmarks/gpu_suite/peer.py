"""Continuous batching of transformers on the same shapes and requests, on this machine."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from gpu_suite import names, shapes
from gpu_suite.engine_times import throughput
from gpu_suite.machine import Machine
from gpu_suite.parts import tried
from gpu_suite.record import Figure, Found
from gpu_suite.requests import TEMPERATURE, Asked, uniform

_LIMIT_S = 100.0
"""What is not answered by then is left; the rate is of what was."""


def measure(machine: Machine) -> Iterator[Found]:
    """One model after the other: theirs, then ours, and how many times theirs ours is."""
    for model in names.THROUGHPUT_MODELS:
        if model not in machine.models:
            continue
        if names.beside(model, "transformers") not in machine.passed:
            name = names.beside(model, "transformers")
            yield from tried(name, partial(_beside, machine, model), machine)
            machine.tidy()


def _beside(machine: Machine, model: str) -> Iterator[Found]:
    theirs = _theirs(machine, model)
    yield theirs
    machine.tidy()
    ours = throughput(machine, shapes.load(model, machine), model)
    note = f"{theirs.value:,.0f} and {ours.value:,.0f} tok/s, one after the other"
    yield Figure(names.beside(model, "transformers"), ours.value / theirs.value, "x", note)


def _theirs(machine: Machine, model: str) -> Figure:
    reference = _model_of(model, machine)
    asked = uniform(machine, reference.config.vocab_size)
    is_dry = machine.is_dry
    if not is_dry:  # graphs and caches are made at the first run
        _answered(reference, [Asked(one.prompt, 4) for one in asked[:4]], is_dry=is_dry)
    num_tokens, elapsed_s = _answered(reference, asked, is_dry=is_dry)
    attention = reference.config._attn_implementation  # noqa: SLF001 - nothing public says it
    note = f"{num_tokens:,} tokens in {elapsed_s:.1f} s; attention by {attention}"
    return Figure(names.throughput(model, "transformers"), num_tokens / elapsed_s, "tok/s", note)


def _model_of(name: str, machine: Machine) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415 - seconds to import

    config = dict(shapes.config_of(name, machine))
    with torch.device(machine.device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(config.pop("model_type"), **config), dtype=machine.dtype
        )
    return model.eval()


def _answered(model: Any, asked: list[Asked], *, is_dry: bool) -> tuple[int, float]:
    """Output tokens, and the seconds that they took."""
    from transformers import (  # noqa: PLC0415 - as above
        ContinuousBatchingConfig,
        GenerationConfig,
    )

    config = GenerationConfig(
        max_new_tokens=max(one.num_output for one in asked),
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        eos_token_id=-1,
        pad_token_id=0,
    )
    waiting = {f"r{number}": one for number, one in enumerate(asked)}
    num_tokens = 0
    started = time.perf_counter()
    # On a CPU its own choice would be the machine's whole memory.
    small = ContinuousBatchingConfig(num_blocks=16, max_batch_tokens=64) if is_dry else None
    with model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=small
    ) as manager:
        for id_, one in waiting.items():
            manager.add_request(one.prompt, request_id=id_, max_new_tokens=one.num_output)
        while waiting and time.perf_counter() - started < _LIMIT_S:
            output = manager.get_result(timeout=1)
            if output is not None and output.is_finished():
                if output.error:
                    raise RuntimeError(f"transformers failed: {output.error}")
                num_tokens += len(output.generated_tokens)
                del waiting[output.request_id]
        elapsed_s = time.perf_counter() - started
    return num_tokens, elapsed_s
