"""What `make gpu` makes of what it measured: statistics, targets, table, merging of parts."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import paceline_kernels
from gpu_suite import names, on_device
from gpu_suite.correctness import counted, files_on_device
from gpu_suite.gaps import between_steps, gaps
from gpu_suite.kernel_times import even, skewed
from gpu_suite.machine import Machine
from gpu_suite.page import DRY, page_of, shown
from gpu_suite.predicted import Prediction
from gpu_suite.record import Broken, Figure, Part, Record, from_json, merged, to_json
from gpu_suite.shapes import CONFIGS, RandomTensors
from gpu_suite.targets import TARGETS, Target, judged
from paceline_engine.checkpoint.families import from_hugging_face

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MACHINE = Machine(is_dry=True)
AT_MOST = Target("step", 2.0, "ms", at_most=True)
AT_LEAST = Target("rate", 2.0, "tok/s")


def a_part(name: str = "engine", *figures: Figure) -> Part:
    return Part(name, {"GPU": "none"}, 1.0, figures)


@pytest.mark.parametrize(
    ("target", "value", "verdict"),
    [
        (AT_MOST, 2.0, "met"),
        (AT_MOST, 2.1, "MISSED"),
        (AT_LEAST, 2.0, "met"),
        (AT_LEAST, 1.9, "MISSED"),
        (AT_MOST, None, "not run"),
        (AT_LEAST, math.nan, "MISSED"),
        (AT_MOST, math.nan, "MISSED"),
    ],
)
def test_a_target_is_met_missed_or_not_run(
    target: Target, value: float | None, verdict: str
) -> None:
    """The bound itself is allowed; what is no number never is, and nothing measured is neither."""
    assert target.verdict(value) == verdict


def test_every_target_is_of_a_figure_of_its_own() -> None:
    """Two bounds on one figure would contradict each other."""
    assert len({target.name for target in TARGETS}) == len(TARGETS)


def test_nothing_is_met_by_an_empty_record() -> None:
    """What was not measured is said not to have been."""
    assert {one.verdict for one in judged(Record())} == {"not run"}


def test_a_part_replaces_its_former_self_alone() -> None:
    """`make gpu PART=engine` keeps the kernels' figures of an hour ago."""
    kernels, old = a_part("kernels", Figure("a", 1, "")), a_part("engine", Figure("b", 1, ""))
    gone = a_part("engine", Figure("c", 1, ""))
    new = a_part("engine", Figure("b", 2, ""))

    record = merged(merged(Record(), [kernels, gone, old]), [new])

    assert (record.value("a"), record.value("b"), record.value("c")) == (1, 2, None)
    assert list(record.parts) == ["kernels", "engine"]


def test_a_record_survives_its_file() -> None:
    """Whole parts and broken ones."""
    whole = a_part("engine", Figure("b", 2.5, "ms", "a note"))
    broken = replace(a_part("peer"), problems=("it broke",), broken=(Broken("a", "so"),))
    record = merged(Record(), [whole, broken])

    assert from_json(json.loads(json.dumps(to_json(record)))) == record


def test_the_page_has_targets_figures_and_problems() -> None:
    """All that a person must see."""
    step = Figure(names.step("llama-3.1-8b"), 5.9, "ms", "median")
    record = merged(Record(), [replace(a_part("engine", step), problems=("time was up",))])

    page = page_of(record, is_dry=False)

    assert f"| {step.name} | <= 5.80 ms | 5.90 ms | MISSED |" in page
    assert f"| {names.PREFILL_8K} | >= 450 TFLOP/s |  | not run |" in page
    assert f"| {step.name} | 5.90 ms | median |" in page
    assert "**Not whole:** time was up" in page
    assert DRY not in page


def test_a_prediction_stands_beside_what_was_measured() -> None:
    """Whether it is within the range of the prediction, which is called one."""
    record = merged(Record(), [a_part("engine", Figure("a", 2.0, "ms"), Figure("b", 9.0, "ms"))])
    predictions = [Prediction(name, 2.5, 1.5, 3.5) for name in "abc"]

    page = page_of(record, predictions, is_dry=False)

    assert "| | predicted | measured | |" in page
    assert "| a | 2.50 ms (1.50 ms to 3.50 ms) | 2 ms | within |" in page
    assert "| b | 2.50 ms (1.50 ms to 3.50 ms) | 9 ms | **OUTSIDE** |" in page
    assert "| c | 2.50 ms (1.50 ms to 3.50 ms) |  | not run |" in page


def test_a_dry_page_says_so() -> None:
    """Nobody must take a CPU's figures for a GPU's, nor its verdicts."""
    record = merged(Record(), [a_part("engine", Figure(names.step("llama-3.1-8b"), 0.1, "ms"))])

    page = page_of(record, is_dry=True)

    assert DRY in page
    assert "| 0.10 ms | tried |" in page
    assert "| met |" not in page
    assert "| 0.10 ms | met |" in page_of(record, is_dry=False)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.8012, "share", "80.1%"),
        (0.8, "ms", "0.80 ms"),
        (123.45, "us", "123.5 us"),
        (29000.4, "tok/s", "29,000 tok/s"),
        (0, "wrong", "0 wrong"),
    ],
)
def test_numbers_are_shown_as_precisely_as_they_are_read(
    value: float, unit: str, text: str
) -> None:
    """Three digits, and the unit."""
    assert shown(value, unit) == text


def test_pauses_are_those_of_all_streams_together() -> None:
    """A copy beside a kernel fills no pause that the kernel does not leave."""
    assert gaps([(5, 6), (0, 3), (1, 2), (3, 4), (9, 10), (8, 9)]) == [1, 2]
    assert gaps([(0, 10), (1, 2), (11, 12)]) == [1]
    assert gaps([]) == []


def test_the_longest_pauses_lie_between_steps() -> None:
    """Three steps have two pauses between them; a short one within a step does not count."""
    spans = [(0.0, 4.0), (4.5, 9.0), (19.0, 25.0), (55.0, 60.0)]

    assert between_steps(spans, 3) == 20
    assert between_steps(spans, 1) == 0
    assert between_steps([(0.0, 4.0)], 3) == 0


@pytest.mark.parametrize(("rows", "context"), [(16, 8192), (64, 1024), (256, 1024)])
def test_a_skewed_batch_has_half_of_its_tokens_in_one_row(rows: int, context: int) -> None:
    """As many rows, and as many tokens but for the rounding."""
    lengths = skewed(rows, context)

    assert len(lengths) == rows
    assert lengths[0] == rows * context // 2
    assert rows * context - rows < sum(lengths) <= rows * context


def test_one_row_cannot_be_skewed() -> None:
    """There is nothing to take from."""
    assert skewed(1, 100) == even(1, 100) == (100,)


def test_pytests_last_line_is_counted() -> None:
    """Errors while setting up are failures too."""
    assert counted("...\n== 1 failed, 20 passed, 3 skipped, 2 errors in 1s ==\n") == {
        "failed": 1,
        "passed": 20,
        "skipped": 3,
        "error": 2,
    }
    assert counted("") == {}


def test_every_file_with_tests_that_need_a_gpu_is_run() -> None:
    """Each kernel has one that names it, and the engine's own tests of a GPU are among them."""
    files = files_on_device()
    texts = {file: (ROOT / file).read_text() for file in files}
    kernels = [file for file in files if file.startswith("tests/kernels")]

    for op in paceline_kernels.__all__:
        assert any(op in texts[file] for file in kernels), op
    marked = {
        str(file.relative_to(ROOT))
        for folder in ("engine", "kernels")
        for file in (ROOT / "tests" / folder).rglob("test_*.py")
        if "@pytest.mark.gpu" in file.read_text() and file != Path(__file__)
    }
    assert len(marked) >= 3
    assert marked <= set(files)


def test_only_tests_that_take_the_device_are_run() -> None:
    """On a lent GPU no minute goes to what a CPU shows."""
    left_out: list[Any] = []

    def deselected(items: list[Any]) -> None:
        left_out.extend(items)

    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselected))
    by_device, by_mark, neither = (
        SimpleNamespace(fixturenames=fixtures, get_closest_marker={"gpu": mark}.get)
        for fixtures, mark in ((["device"], None), ([], "gpu"), (["tmp_path"], None))
    )
    items: list[Any] = [by_device, neither, by_mark]

    on_device.pytest_collection_modifyitems(config, items)

    assert items == [by_device, by_mark]
    assert left_out == [neither]


# Parameters of the published checkpoints.
@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("qwen2.5-0.5b", 494_032_768),
        ("qwen3-0.6b", 596_049_920),
        ("llama-3.2-1b", 1_235_814_400),
        ("qwen3-4b", 4_022_468_096),
        ("llama-3.1-8b", 8_030_261_248),
    ],
)
def test_the_shapes_are_those_of_the_models(name: str, num_parameters: int) -> None:
    """A layer more or less would be another benchmark."""
    assert from_hugging_face(CONFIGS[name]).num_parameters == num_parameters
    assert set(CONFIGS) == set(names.MODELS)


def test_random_tensors_have_the_shapes_that_the_loader_asks_for() -> None:
    """Biases have one side, norms are around 1."""
    config = from_hugging_face(CONFIGS["qwen2.5-0.5b"])
    tensors = RandomTensors(config, "meta", MACHINE.dtype)

    assert tensors.read("model.layers.0.self_attn.k_proj.bias").shape == (128,)
    assert tensors.read("model.layers.0.self_attn.k_proj.weight").shape == (128, 896)
    assert tensors.read("model.layers.0.mlp.down_proj.weight").shape == (896, 4864)
    assert tensors.read("model.norm.weight").shape == (896,)


# What a machine for numbers need not have.
HIDE = """
import sys


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in %r:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hide())
"""


def run_suite(
    tmp_path: Path, *options: str, hidden: set[str]
) -> "subprocess.CompletedProcess[str]":
    """As a person runs it where some packages are not installed."""
    (tmp_path / "sitecustomize.py").write_text(HIDE % hidden)
    return subprocess.run(
        [sys.executable, "-m", "gpu_suite", *options, "--results", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_dry_part_is_merged_into_a_dry_record_alone(tmp_path: Path) -> None:
    """One of the parts: an engine whose limits change under load."""
    stale = {"dry_run": False, **to_json(merged(Record(), [a_part("kernels")]))}
    (tmp_path / "gpu.json").write_text(json.dumps(stale))

    run = run_suite(tmp_path, "--dry", "--part", "limits", hidden={"gguf", "llguidance", "zmq"})

    assert run.returncode == 0, run.stderr
    record = from_json(json.loads((tmp_path / "gpu.json").read_text()))
    assert list(record.parts) == ["limits"]
    assert (record.value(names.LOST), record.value(names.LEAKED)) == (0, 0)
    page = (tmp_path / "gpu.md").read_text()
    assert DRY in page
    assert page in run.stdout


def test_what_is_not_installed_is_named_in_a_sentence(tmp_path: Path) -> None:
    """Before any part is begun: a lent machine's minutes are few."""
    run = run_suite(tmp_path, "--dry", hidden={"msgspec", "pydantic", "pydantic_settings"})

    assert run.returncode == 1
    assert run.stderr == (
        f"This needs msgspec and pydantic-settings, which {sys.executable} does not have: "
        "docs/gpu.md says how to bring the wheels to a machine without a network.\n"
    )


def test_without_a_gpu_the_suite_says_so(device: str) -> None:
    """One sentence, not a traceback."""
    if device == "cuda":
        pytest.skip("this machine has a GPU")

    run = subprocess.run(
        [sys.executable, "-m", "gpu_suite"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert run.returncode == 1
    assert run.stderr == "This measures a GPU, and torch sees none. Try --dry.\n"
