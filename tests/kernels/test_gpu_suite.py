"""What `make gpu` makes of what it measured: statistics, targets, table, merging of parts."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from triton.runtime.errors import OutOfResources

import paceline_kernels
from gpu_suite import child, names, on_device
from gpu_suite.candidates import Question, questions
from gpu_suite.correctness import counted, files_on_device
from gpu_suite.gaps import between_steps, gaps
from gpu_suite.kernel_times import even, skewed
from gpu_suite.machine import DeviceLostError, Machine
from gpu_suite.page import DRY, page_of, shown
from gpu_suite.parts import LOST, TIME_IS_UP, UNFINISHED, run_part, tried
from gpu_suite.record import Broken, Figure, Found, Part, Record, from_json, merged, to_json
from gpu_suite.shapes import CONFIGS, RandomTensors
from gpu_suite.targets import TARGETS, Target, judged
from gpu_suite.tuning import Timed, counts, figure_of
from paceline_engine.model.families import from_hugging_face
from paceline_kernels.tuned import SPACES, Gpu, read_table, shipped_table
from paceline_testing.clock import ManualClock
from paceline_testing.waiting import wait_until

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


def test_what_was_measured_before_a_failure_stays() -> None:
    """The other parts go on, and the failure is told."""

    def breaks(_machine: Machine) -> Iterator[Figure]:
        yield Figure("a", 1, "ms")
        raise ValueError("the kernel is wrong")

    part = run_part("engine", breaks, MACHINE, deadline=10.0, clock=ManualClock(0.0))

    assert [figure.name for figure in part.figures] == ["a"]
    assert part.problems == ("ValueError: the kernel is wrong",)


def test_what_breaks_alone_leaves_the_rest_to_be_measured() -> None:
    """One kernel in fifty that does not compile must not cost the other figures."""

    def breaks() -> Iterator[Found]:
        yield Figure("a", 1, "ms")
        raise ValueError("it\ndoes not compile")

    def measure(machine: Machine) -> Iterator[Found]:
        yield from tried("b", breaks, machine)
        yield Figure("c", 1, "ms")

    part = run_part("kernels", measure, MACHINE, deadline=10.0, clock=ManualClock(0.0))

    assert [figure.name for figure in part.figures] == ["a", "c"]
    assert part.broken == (Broken("b", "ValueError: it does not compile"),)
    assert not part.problems
    assert not part.is_whole
    assert "**Broken:** b: ValueError: it does not compile" in page_of(
        merged(Record(), [part]), is_dry=False
    )


def test_a_lost_device_ends_the_process_and_not_the_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After an illegal access all calls fail: the next process leaves out what led to it."""
    kept: list[Part] = []

    def wild() -> Iterator[Found]:
        yield from ()
        raise RuntimeError("an illegal memory access was encountered")

    def measure(machine: Machine) -> Iterator[Found]:
        if not machine.passed:
            yield Figure("a", 1, "ms")
            yield from tried("b", wild, machine)
        yield Figure("c", 1, "ms")

    def is_dead(_machine: Machine) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr(Machine, "wait", is_dead)
    first = run_part("kernels", measure, MACHINE, 10.0, clock=ManualClock(0.0), keep=kept.append)
    second = run_part(
        "kernels",
        measure,
        replace(MACHINE, passed=frozenset(one.name for one in first.found)),
        deadline=10.0,
        clock=ManualClock(0.0),
        before=first,
    )

    assert LOST in first.problems
    assert kept[-1].broken[0].name == "b"
    assert [figure.name for figure in second.figures] == ["a", "c"]
    assert [one.name for one in second.broken] == ["b"]
    assert not second.problems


def test_a_device_that_lives_is_not_lost() -> None:
    """An error of the host alone."""
    MACHINE.require_alive(ValueError("wrong"))
    with pytest.raises(DeviceLostError, match="wrong; then"):
        Lost(is_dry=True).require_alive(ValueError("wrong"))


class Lost(Machine):
    """All that is asked of it fails."""

    def wait(self) -> None:
        raise RuntimeError("CUDA error")


def test_what_there_is_is_kept_after_each_figure() -> None:
    """A machine may be taken away at any time: till its end a part says that it has none."""
    kept: list[Part] = []

    def measure(_machine: Machine) -> Iterator[Found]:
        yield Figure("a", 1, "ms")
        yield Figure("b", 1, "ms")

    part = run_part(
        "engine", measure, MACHINE, deadline=10.0, clock=ManualClock(0.0), keep=kept.append
    )

    assert [len(one.figures) for one in kept] == [1, 2]
    assert all(one.problems == (UNFINISHED,) for one in kept)
    assert not part.problems


def test_no_figure_is_begun_when_time_is_up() -> None:
    """A machine that is lent is given back in time."""
    clock = ManualClock()

    def slow(_machine: Machine) -> Iterator[Figure]:
        for name in ("a", "b", "c"):
            clock.advance(6.0)
            yield Figure(name, 1, "ms")

    part = run_part("engine", slow, MACHINE, deadline=clock() + 10.0, clock=clock)

    assert [figure.name for figure in part.figures] == ["a", "b"]
    assert part.seconds == 12.0
    assert part.problems == (TIME_IS_UP,)


def test_a_part_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    """A process of a peer that stayed would hold the GPU's memory."""
    pid = tmp_path / "pid"
    script = (
        "import subprocess, sys, time; from pathlib import Path\n"
        "grandchild = subprocess.Popen(['sleep', '600'])\n"
        "fresh = Path(sys.argv[1] + '.new'); fresh.write_text(str(grandchild.pid))\n"
        "fresh.rename(sys.argv[1])\n"
        "time.sleep(600)"
    )

    def wait_until_begun(_process: Any, timeout: float) -> int:
        assert timeout == 480
        wait_until(pid.exists)
        raise subprocess.TimeoutExpired("", timeout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "_wait", wait_until_begun)
        why = child.run([sys.executable, "-c", script, str(pid)], 480)

    assert why == "it was stopped after 480 s"
    wait_until(lambda: not is_running(int(pid.read_text())))


def is_running(pid: int) -> bool:
    """A process that has ended may still be in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_part_whose_process_dies_says_how() -> None:
    """A crash of a driver raises nothing that could be caught."""
    assert child.run([sys.executable, "-c", "raise SystemExit(3)"], 60) == (
        "its process ended with status 3"
    )
    assert not child.run([sys.executable, "-c", ""], 60)


H200 = Gpu("NVIDIA H200", (9, 0))
VERSIONS = {"torch": "2.15.0", "triton": "3.9.0"}
STANDING = {"num_warps": 4}


def a_question() -> Question:
    def make() -> Any:
        raise NotImplementedError

    return Question("rms_norm", {"columns": 4096}, make)


def test_blocks_that_are_faster_become_a_row_of_this_gpu() -> None:
    """A line that the table reads, with what it is from."""
    timed = [Timed(STANDING, 20e-6), Timed({"num_warps": 8}, 10e-6), Timed({"num_warps": 2}, 30e-6)]

    figure = figure_of(a_question(), H200, STANDING, timed, tried=5, versions=VERSIONS)

    assert figure.value == pytest.approx(10)
    (row,) = read_table([figure.row]).rows
    assert (row.gpu, row.name, row.kernel, row.shape) == (
        *("sm_90", "NVIDIA H200"),
        *("rms_norm", {"columns": 4096}),
    )
    assert row.blocks == {"num_warps": 8}
    assert row.because == (
        "measured: 10.0 us, was 20.0 us; 3 of 5 candidates; torch 2.15.0, triton 3.9.0"
    )
    assert merged(Record(), [a_part("tune", figure)]).rows == (figure.row,)


def test_what_stands_stays_where_the_gain_is_noise() -> None:
    """Two per cent, and the row's author would be measuring the weather."""
    timed = [Timed(STANDING, 100e-6), Timed({"num_warps": 8}, 99e-6)]

    figure = figure_of(a_question(), H200, STANDING, timed, tried=2, versions=VERSIONS)

    assert not figure.row
    assert "what stands stays" in figure.note


def test_what_stands_makes_way_where_it_does_not_count() -> None:
    """It spills on this GPU, or does not fit."""
    timed = [Timed({"num_warps": 8}, 99e-6)]

    figure = figure_of(a_question(), H200, STANDING, timed, tried=2, versions=VERSIONS)

    assert read_table([figure.row]).rows[0].blocks == {"num_warps": 8}
    assert "what stands does not count" in figure.note


def test_a_class_without_a_candidate_that_counts_is_a_problem() -> None:
    with pytest.raises(RuntimeError, match="rms_norm, columns 4096: none of 5 candidates"):
        figure_of(a_question(), H200, STANDING, [], tried=5, versions=VERSIONS)


def test_a_candidate_that_does_not_fit_or_is_wrong_does_not_count() -> None:
    """A GPU's shared memory is not known before the launch."""

    def too_large() -> bool:
        raise OutOfResources(300_000, 228_000, "shared memory")

    assert counts(lambda: True)
    assert not counts(lambda: False)
    assert not counts(too_large)


@pytest.mark.parametrize("is_dry", [True, False])
def test_every_question_is_of_a_class_and_every_candidate_has_a_place(is_dry: bool) -> None:
    """The list is bounded: a search must end while the machine is lent."""
    asked = list(questions(Machine(is_dry), has_fp8=True))

    assert {question.kernel for question in asked} == set(SPACES)
    for question in asked:
        assert question.shape in list(SPACES[question.kernel].shapes())
        standing = shipped_table().row_for(H200, question.kernel, question.shape).blocks
        candidates = list(question.candidates(standing))
        assert candidates[0] == standing
        assert 1 < len(candidates) <= 40
        assert len({str(sorted(blocks.items())) for blocks in candidates}) == len(candidates)
        for blocks in candidates:
            assert all(value in SPACES[question.kernel].blocks[k] for k, value in blocks.items())


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


# What comes with torch, triton and transformers is there on a machine for numbers; these are not.
HIDE = """
import sys

HIDDEN = {"gguf", "llguidance", "msgspec", "pydantic", "pydantic_settings", "zmq"}


class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hide())
"""


def test_a_dry_part_is_merged_into_a_dry_record_alone(tmp_path: Path) -> None:
    """One of the parts, as a person runs it where nothing more than the three is installed.

    An engine whose limits change under load.
    """
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    stale = {"dry_run": False, **to_json(merged(Record(), [a_part("kernels")]))}
    (tmp_path / "gpu.json").write_text(json.dumps(stale))

    run = subprocess.run(
        [sys.executable, "-m", "gpu_suite", "--dry", "--part", "limits", "--results", tmp_path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        cwd=ROOT / "benchmarks",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    record = from_json(json.loads((tmp_path / "gpu.json").read_text()))
    assert list(record.parts) == ["limits"]
    assert record.parts["limits"].machine["stood in for"] == (
        "msgspec and pydantic and pydantic_settings"
    )
    assert (record.value(names.LOST), record.value(names.LEAKED)) == (0, 0)
    page = (tmp_path / "gpu.md").read_text()
    assert DRY in page
    assert page in run.stdout


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
