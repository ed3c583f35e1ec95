"""`paceline plan` reads manifest, model and trace, and names what is wrong with each."""

import json
import struct
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from paceline_operator.local.cli import main
from paceline_operator.local.gguf_header import GgufError, read_header
from paceline_operator.tuning.book import Book
from paceline_operator.tuning.book_json import encode
from paceline_operator.tuning.model import SLA
from paceline_operator.tuning.remembered import Key, Remembered

SIZE = ("--params", "8B", "--kv-bytes", "131072")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """One GPU, a model that is not here."""
    return write_manifest(tmp_path, {"itl": {"p99": "50ms"}, "ttft": {"p99": "1s"}})


def write_manifest(folder: Path, sla: object, **engine: str) -> Path:
    path = folder / "service.yaml"
    spec = {"model": {"uri": "hf://org/name", "revision": "abc"}, "sla": sla}
    spec |= {"engine": engine} if engine else {}
    document = {
        "apiVersion": "serving.paceline.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": spec,
    }
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two requests a second for a minute."""
    rows = [f"{i / 2},m,{300 + i},{20 + i % 9},0,log" for i in range(120)]
    path = tmp_path / "trace.csv"
    head = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
    path.write_text("\n".join([head, *rows]))
    return path


def run(manifest: Path, trace: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ("plan", "-f", str(manifest), "--traffic", str(trace), *more))


def test_several_ranks_are_not_guessed_at(manifest: Path, trace: Path) -> None:
    """What they lose by adding up their parts was measured nowhere."""
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["engine"] = {"tensorParallelSize": 2}
    document["spec"]["resources"] = {"gpu": {"count": 2}}
    manifest.write_text(yaml.safe_dump(document))

    result = run(manifest, trace, "--gpu", "h100", *SIZE)

    assert result.exit_code == 1
    assert "spec.engine.tensorParallelSize: 2" in result.output


def test_the_table_says_replicas_limits_and_the_arithmetic_of_memory(
    manifest: Path, trace: Path
) -> None:
    """All that a decision needs, on one screen."""
    result = run(manifest, trace, "--gpu", "h100", *SIZE)

    assert result.exit_code == 0
    assert "1 replica" in result.output
    for words in ("capacity of a pod", "max batch size", "token budget", "79.00 GiB x 0.9"):
        assert words in result.output


def test_weights_of_a_byte_leave_more_to_the_cache(tmp_path: Path, trace: Path) -> None:
    """8 billion of them, 7.45 GiB instead of 14.90."""
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}}, quantization="INT8")

    document = json.loads(run(manifest, trace, "--gpu", "h100", *SIZE, "--format", "json").output)

    assert document["memory"]["weight_bytes"] == 8 * 10**9


def test_a_target_that_no_replica_helps_ends_with_3(tmp_path: Path, trace: Path) -> None:
    """A pipeline may stop a deployment on it."""
    manifest = write_manifest(tmp_path, {"itl": {"p99": "5ms"}})

    result = run(manifest, trace, "--gpu", "h100", *SIZE, "--format", "json")

    assert result.exit_code == 3
    document = json.loads(result.output)
    assert (document["achievable"], document["reason"]) == (False, "TPOTFloor")


def test_the_json_holds_every_figure_with_its_bar(manifest: Path, trace: Path) -> None:
    """For a program."""
    document = json.loads(run(manifest, trace, "--gpu", "h100", *SIZE, "--format", "json").output)

    outlook = document["outlook"]
    assert set(outlook["capacity_rps"]) == {"value", "low", "high"}
    assert outlook["latencies"]["itl"]["target_ms"] == 50.0
    assert document["memory"]["kv_bytes_per_token"] == 131_072
    assert document["trace"]["requests"] == 120


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (SIZE, "spec.resources.gpu.count: 1: say which GPU with --gpu: b200, h200, h100"),
        (("--gpu", "abacus", *SIZE), "--gpu abacus: known are b200, .* say --gpu-memory as well"),
        (("--gpu", "h100"), "hf://org/name is not on this machine; say how large it is: --params"),
        (("--gpu", "h100", "--params", "8B"), "--params and --kv-bytes go together"),
        (("--gpu", "h100", *SIZE, "--memory", "nowhere"), "--memory nowhere: cannot be read"),
    ],
    ids=["no gpu", "unknown gpu", "no model", "half a size", "no memory"],
)
def test_what_is_missing_is_named(
    manifest: Path, trace: Path, more: tuple[str, ...], words: str
) -> None:
    """With what to type instead."""
    result = run(manifest, trace, *more)

    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert_matches(words, result.output)


def assert_matches(pattern: str, text: str) -> None:
    with pytest.raises(RuntimeError, match=pattern):
        raise RuntimeError(text)


def test_an_unknown_gpu_is_planned_from_its_memory_with_wider_bars(
    manifest: Path, trace: Path
) -> None:
    """Better than nothing, and it says so."""
    result = run(manifest, trace, "--gpu", "abacus", "--gpu-memory", "48GiB", *SIZE)

    assert result.exit_code == 0
    assert "x/÷ 3" in result.output


def test_requests_that_are_left_out_are_said_right_after_the_verdict(
    manifest: Path, trace: Path
) -> None:
    """All other numbers are without them."""
    text = manifest.read_text().replace("spec:\n", "spec:\n  engine: {maxModelLen: 400}\n")
    manifest.write_text(text)

    result = run(manifest, trace, "--gpu", "h100", *SIZE)

    assert "43 of 120 requests (35.8%) are longer than 400 tokens" in result.output


@pytest.mark.parametrize("value", ["8Q", "-1", "0", "many"])
def test_a_number_that_is_none_is_refused(manifest: Path, trace: Path, value: str) -> None:
    """Click's own status."""
    assert run(manifest, trace, f"--params={value}").exit_code == 2


def test_a_bad_field_and_a_bad_line_are_named(tmp_path: Path, manifest: Path, trace: Path) -> None:
    """As by `paceline up`; the trace by line and column."""
    broken = tmp_path / "bad.csv"
    broken.write_text(trace.read_text() + "\n61,m,many,3,0,log\n")

    assert "spec.sla.itl.p99" in run(write_manifest(tmp_path, {"itl": {"p99": "x"}}), trace).output
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}})
    assert "line 122, column Request tokens" in run(manifest, broken).output


def a_memory(path: Path, *, device: str = "NVIDIA H100 80GB HBM3") -> Path:
    key = Key("name", "abc", 16 * 10**9, "bfloat16", "1", device, ())
    theta = (8.0, 0.01, 0.02, 0.06, 0.0)
    entry = Remembered(key, SLA(), theta, 256, (), 64, 512, None, at=1.0)
    data = {"kind": "ConfigMap", "data": {"memory.json": encode(Book((entry,)))}}
    path.write_text(json.dumps(data))
    return path


def test_a_remembered_fit_takes_the_place_of_the_prior(
    tmp_path: Path, manifest: Path, trace: Path
) -> None:
    """From the ConfigMap as kubectl prints it; its bars are narrow."""
    memory = a_memory(tmp_path / "memory.json")

    result = run(manifest, trace, "--gpu", "h100", *SIZE, "--memory", str(memory))

    assert result.exit_code == 0
    assert "x/÷ 1.15" in result.output


def test_a_memory_of_another_gpu_is_not_taken(tmp_path: Path, manifest: Path, trace: Path) -> None:
    """And what it holds is told."""
    memory = a_memory(tmp_path / "memory.json", device="NVIDIA L4")

    result = run(manifest, trace, "--gpu", "h100", *SIZE, "--memory", str(memory))

    assert result.exit_code == 1
    assert "on h100; it holds name on NVIDIA L4" in result.output


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"GGUF" + struct.pack("<I", 99),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 40),
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"a", 77),
        b"GGUF" + struct.pack("<IQQ", 3, 5, 0),
    ],
    ids=["empty", "zip", "version", "length", "type", "cut off"],
)
def test_a_broken_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    """Whatever the bytes."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)

    with pytest.raises(GgufError, match=r"m\.gguf is no whole GGUF file"):
        read_header(path)
