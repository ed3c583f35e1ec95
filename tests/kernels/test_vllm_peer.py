"""Ours in turn with vLLM: started, asked and judged right, by a stand-in for vLLM."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_suite import names, vllm_peer
from gpu_suite.machine import Machine
from gpu_suite.page import page_of
from gpu_suite.parts import run_part
from gpu_suite.record import Absent, Figure, Part, Record, from_json, merged, to_json
from gpu_suite.shapes import published
from gpu_suite.targets import judged
from paceline_testing.clock import ManualClock

MACHINE = Machine(is_dry=True)
MODEL = "llama-3.1-8b"
STAND_IN = '''
"""As much of vllm as is used."""
import json
import os
from types import SimpleNamespace

__version__ = "0.0.stand-in"
print("a library that talks to standard output")


class SamplingParams:
    def __init__(self, temperature, max_tokens, ignore_eos, detokenize):
        assert ignore_eos and not detokenize
        self.max_tokens = max_tokens


class LLM:
    def __init__(self, model, load_format, skip_tokenizer_init, **rest):
        assert load_format == "dummy" and skip_tokenizer_init
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        config = json.load(open(os.path.join(model, "config.json")))
        assert config["architectures"], config
        self.vocab_size = config["vocab_size"]

    def generate(self, prompts, params, use_tqdm):
        for prompt in prompts:
            assert all(0 <= token < self.vocab_size for token in prompt["prompt_token_ids"])
        made = [range(each.max_tokens - LOST) for each in params]
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(one))]) for one in made]
'''


def an_interpreter(folder: Path, *, lost: int = 0) -> str:
    """A Python that has such a vllm, and leaves out so many tokens of each answer."""
    (folder / "vllm.py").write_text(STAND_IN.replace("LOST", str(lost)))
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return str(python)


def run() -> Part:
    def measure(machine: Machine) -> Iterator[Figure | Absent]:
        return vllm_peer.measure(machine, [MODEL])

    return run_part("vllm", measure, MACHINE, deadline=1e9, clock=ManualClock(0.0))


def test_without_vllm_the_table_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no fault of the suite: the part is whole, each target has the reason beside it."""
    monkeypatch.delenv(vllm_peer.VARIABLE, raising=False)

    part = run()
    page = page_of(merged(Record(), [part]), is_dry=False)

    assert (part.figures, part.problems) == ((), ())
    wanted = names.beside(MODEL, "vllm")
    assert [one.name for one in part.absent] == [wanted]
    assert f"| {wanted} | >= 1 x | not installed on this machine (VLLM_PYTHON" in page
    assert f"{wanted}: not installed" in page


@pytest.mark.parametrize("python", ["/nowhere/python", sys.executable], ids=["none", "without"])
def test_an_interpreter_without_vllm_is_named(monkeypatch: pytest.MonkeyPatch, python: str) -> None:
    """Whoever set the variable wants to know why nothing came of it."""
    monkeypatch.setenv(vllm_peer.VARIABLE, python)

    why = vllm_peer.missing(python)

    assert why.startswith(vllm_peer.NOT_INSTALLED)
    assert python in why


def test_both_answer_the_same_requests_in_turn(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its own process, and all the way but for vLLM itself: both rates, and how they compare."""
    monkeypatch.setenv(vllm_peer.VARIABLE, an_interpreter(tmp_path))

    part = run()

    assert part.problems == ()
    record = merged(Record(), [part])
    ours = record.value(names.throughput(MODEL, "paceline in turn"))
    theirs = record.value(names.throughput(MODEL, "vllm in turn"))
    assert ours is not None
    assert theirs is not None
    assert ours > 0 < theirs
    verdicts = {one.target.name: one.verdict for one in judged(record)}
    assert verdicts[names.beside(MODEL, "vllm")] in {"met", "MISSED"}
    assert "0.0.stand-in" in part.figures[-1].note


def test_a_peer_that_leaves_tokens_out_is_no_peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A rate of other work is not compared."""
    monkeypatch.setenv(vllm_peer.VARIABLE, an_interpreter(tmp_path, lost=1))

    part = run()

    assert part.figures == ()
    assert "vllm gave" in part.problems[0]


def test_a_peer_that_dies_is_a_problem_of_the_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With its exit status; what it said stands above."""
    python = an_interpreter(tmp_path)
    (tmp_path / "vllm.py").write_text("raise SystemExit(7)")
    monkeypatch.setenv(vllm_peer.VARIABLE, python)

    assert "exit status 7" in run().problems[0]


def test_reasons_survive_the_file_and_a_figure_replaces_them() -> None:
    """A machine that gets vLLM later has its figures in the place of the reason."""
    name = names.beside("qwen3-0.6b", "vllm")
    without = Part("vllm", {}, 1.0, absent=(Absent(name, "not installed"),))
    record = from_json(to_json(merged(Record(), [without])))

    later = merged(record, [replace(without, figures=(Figure(name, 1.4, "x"),), absent=())])

    assert (record.value(name), record.why_absent(name)) == (None, "not installed")
    assert (later.value(name), later.why_absent(name)) == (1.4, None)


@pytest.mark.parametrize(
    ("model", "architecture"),
    [
        ("qwen2.5-0.5b", "Qwen2ForCausalLM"),
        ("qwen3-0.6b", "Qwen3ForCausalLM"),
        ("llama-3.1-8b", "LlamaForCausalLM"),
    ],
)
def test_the_published_config_names_its_architecture(model: str, architecture: str) -> None:
    """Engines that read a folder choose the model by it, and old ones read the theta at the top."""
    config = published(model, Machine(is_dry=False))

    assert config["architectures"] == [architecture]
    assert config["dtype"] == "bfloat16"
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
