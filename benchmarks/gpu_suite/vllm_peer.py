"""Ours in turn with vLLM: the same shapes, random weights, prompts and lengths, on this machine.

vLLM runs in an environment of its own, whose interpreter VLLM_PYTHON names, and in a process of its
own, offline: it gets a `config.json` and makes its weights up. Both hold half of the memory all the
time, and each sleeps while the other runs.
"""

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from gpu_suite import names, shapes
from gpu_suite.machine import Machine
from gpu_suite.record import Absent, Figure
from gpu_suite.requests import (
    TEMPERATURE,
    TOKEN_BUDGET,
    Asked,
    answers,
    engine_of,
    submit,
    uniform,
)
from paceline_engine.loading.load import LoadedModel

VARIABLE = "VLLM_PYTHON"
NOT_INSTALLED = "not installed on this machine"
_SCRIPT = Path(__file__).parents[1] / "peers" / "answer_vllm.py"
_REPEATS = 3
_SHARE = 0.45
"""Share of the GPU's memory for each of the two."""
_WARM = 64
"""Requests, of a few tokens each, by which everything is compiled and captured."""


def measure(
    machine: Machine, models: Sequence[str] = names.BESIDE_MODELS
) -> Iterator[Figure | Absent]:
    """One model after the other, each engine's rate and how many times the other's ours is."""
    python = os.environ.get(VARIABLE, "")
    why = missing(python)
    for model in models:
        if why:
            yield Absent(names.beside(model, "vllm"), why)
            continue
        with started(python, model, machine) as peer:
            yield from _in_turn(machine, model, peer)
        machine.tidy()


def missing(python: str) -> str:
    """Say why vLLM cannot be measured here; empty where it can."""
    if not python:
        return f"{NOT_INSTALLED} ({VARIABLE} names no interpreter)"
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        found = subprocess.run([python, "-c", look], check=False, timeout=120)
    except OSError as error:
        return f"{NOT_INSTALLED} ({VARIABLE}: {error})"
    return "" if found.returncode == 0 else f"{NOT_INSTALLED} ({python} has no vllm)"


class Peer:
    """vLLM with one model, ready."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.version: str = self._read()["version"]

    def answered(self, asked: Sequence[Asked]) -> tuple[int, float]:
        """Output tokens, and the seconds that they took."""
        requests = [(one.prompt, one.num_output) for one in asked]
        assert self._process.stdin is not None
        order = {"temperature": TEMPERATURE, "asked": requests}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        return answer["tokens"], answer["seconds"]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"vLLM has ended: exit status {self._process.wait()}; see above")
        return json.loads(line)


@contextmanager
def started(python: str, model: str, machine: Machine) -> Iterator[Peer]:
    """Start vLLM, and end it. Raises RuntimeError where it ends by itself."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(shapes.published(model, machine)))
        process = subprocess.Popen(
            [python, str(_SCRIPT), json.dumps(arguments(folder, machine))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(python, machine),
            cwd=folder,  # Python looks here first: a `kernels.py` of ours is not the one it means
        )
        try:
            yield Peer(process)
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    """It ends when its input does, or is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()


def arguments(folder: str, machine: Machine) -> dict[str, Any]:
    """What is given to `vllm.LLM`: the same room and lengths as ours has, else its own choices."""
    room = (8, 128, 128) if machine.is_dry else (256, TOKEN_BUDGET, 4096)
    max_num_seqs, max_num_batched_tokens, max_model_len = room
    return {
        "model": folder,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": str(machine.dtype).removeprefix("torch."),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "max_model_len": max_model_len,
        **({} if machine.is_dry else {"gpu_memory_utilization": _SHARE}),
    }


def environment(python: str, machine: Machine) -> dict[str, str]:
    """Ours, offline; of ours nothing is imported there."""
    left = {"PYTHONPATH", VARIABLE}
    ours = {name: value for name, value in os.environ.items() if name not in left}
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if not machine.is_dry:
        return ours | quiet
    openmp = Path(python).parents[1] / "lib" / "libiomp5.so"
    return {
        **ours,
        **quiet,
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        **({"LD_PRELOAD": str(openmp)} if openmp.exists() else {}),
    }


def _in_turn(machine: Machine, model: str, peer: Peer) -> Iterator[Figure]:
    loaded = shapes.load(model, machine, kv_cache_memory_fraction=2 * _SHARE)
    engines = {"paceline": lambda asked: _ours(machine, loaded, asked), "vllm": peer.answered}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for repeat in range(-1, _REPEATS):
        asked = uniform(machine, loaded.info.vocab_size, seed=repeat)
        if repeat < 0:
            asked = [Asked(one.prompt, min(one.num_output, 8)) for one in asked[:_WARM]]
        order = list(engines) if repeat % 2 else list(reversed(engines))
        for name in order:
            num_tokens, elapsed_s = engines[name](asked)
            if num_tokens != sum(one.num_output for one in asked):
                raise RuntimeError(f"{name} gave {num_tokens} tokens of {model}, not all asked for")
            if repeat >= 0:
                rates[name].append(num_tokens / elapsed_s)
    versions = {"paceline": "", "vllm": f"vLLM {peer.version}, "}
    for name, each in rates.items():
        note = f"{versions[name]}in turn; {min(each):,.0f} to {max(each):,.0f}"
        yield Figure(names.throughput(model, f"{name} in turn"), median(each), "tok/s", note)
    ratios = [our / their for our, their in zip(rates["paceline"], rates["vllm"], strict=True)]
    note = f"vLLM {peer.version}; {min(ratios):.2f} to {max(ratios):.2f} of {_REPEATS} pairs"
    yield Figure(names.beside(model, "vllm"), median(ratios), "x", note)


def _ours(machine: Machine, loaded: LoadedModel, asked: Sequence[Asked]) -> tuple[int, float]:
    engine = engine_of(loaded)
    machine.wait()
    started_at = time.perf_counter()
    for number, one in enumerate(asked):
        submit(engine, number, one)
    given = answers(engine)
    return sum(map(len, given.values())), time.perf_counter() - started_at
