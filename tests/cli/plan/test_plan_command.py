"""`paceline plan` reads manifest, model and trace, and names what is wrong with each."""

import json
import struct
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from paceline_cli.__main__ import main
from paceline_cli.plan.gguf_header import GgufError, read_header
from paceline_tuner.service_spec import SLA
from paceline_tuner.warm_start import WarmStart
from paceline_tuner.warm_start_entry import EngineKey, WarmStartEntry
from paceline_tuner.warm_start_json import encode

SIZE = ("--params", "8B", "--kv-bytes", "131072")


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """One GPU, a model that is not here."""
    return write_manifest(tmp_path, {"itl": {"p99": "50ms"}, "ttft": {"p99": "1s"}})


CONFIG = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
}


def write_manifest(folder: Path, sla: object, *, uri: str = "", **engine: object) -> Path:
    path = folder / "service.yaml"
    model = {"uri": uri} if uri else {"uri": "hf://org/name", "revision": "abc"}
    spec: dict[str, object] = {"model": model, "sla": sla}
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


def share(manifest: Path, ranks: int) -> None:
    """Let so many GPUs share the manifest's model."""
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["engine"] = {"tensorParallelSize": ranks}
    document["spec"]["resources"] = {"gpu": {"count": ranks}}
    manifest.write_text(yaml.safe_dump(document))


def test_several_ranks_are_planned_with_wider_bars(manifest: Path, trace: Path) -> None:
    """Each holds its part and sums with the others, which nobody has measured here."""
    one = run(manifest, trace, "--gpu", "h100", *SIZE, "--format", "json")
    share(manifest, 2)

    two = run(manifest, trace, "--gpu", "h100", *SIZE, "--format", "json")
    page = run(manifest, trace, "--gpu", "h100", *SIZE).output

    alone, shared = (json.loads(result.output) for result in (one, two))
    assert (alone["memory"]["ranks"], shared["memory"]["ranks"]) == (1, 2)
    assert shared["memory"]["kv_bytes_per_token"] == 65_536
    weights = alone["memory"]["weight_bytes"]
    assert weights / 2 < shared["memory"]["weight_bytes"] < 0.65 * weights
    assert shared["memory"]["kv_tokens"] > 2 * alone["memory"]["kv_tokens"]
    assert (alone["step_time_factor"], shared["step_time_factor"]) == (1.5, 2.0)
    assert "ranks" in page
    assert "embedding and head assumed" in " ".join(page.split())


def test_ranks_that_do_not_divide_the_model_are_refused(tmp_path: Path, trace: Path) -> None:
    """By the field and what it does not divide."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}}, uri=f"file://{tmp_path}")
    share(manifest, 3)

    result = run(manifest, trace, "--gpu", "h100")

    assert result.exit_code == 1
    assert "spec.engine.tensorParallelSize: must divide the model's 16" in result.output


DRAFT = {"method": "Draft", "draftModelUri": "hf://org/small", "draftModelRevision": "def"}
DRAFT_SIZE = ("--draft-params", "1B", "--draft-kv-bytes", "32768")


def test_a_draft_model_takes_its_part_of_the_memory(tmp_path: Path, trace: Path) -> None:
    """Weights once, and keys and values of every token beside the model's."""
    alone = write_manifest(tmp_path, {"itl": {"p99": "50ms"}})
    without = run(alone, trace, "--gpu", "h100", *SIZE, "--format", "json")
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}}, speculative=DRAFT)

    result = run(manifest, trace, "--gpu", "h100", *SIZE, *DRAFT_SIZE, "--format", "json")
    page = run(manifest, trace, "--gpu", "h100", *SIZE, *DRAFT_SIZE).output

    before, after = (json.loads(one.output)["memory"] for one in (without, result))
    assert after["weight_bytes"] == before["weight_bytes"] + 2 * 10**9
    assert after["kv_bytes"] == before["kv_bytes"] - 2 * 10**9
    assert after["kv_bytes_per_token"] == 131_072 + 32_768
    assert after["kv_tokens"] == after["kv_bytes"] // (163_840 * 16) * 16
    assert "its draft" in page
    assert "of its draft" in page


@pytest.mark.parametrize(("device", "buffer"), [("h100", 64 << 20), (None, 0)], ids=["gpu", "cpu"])
def test_swapped_blocks_take_a_buffer_of_a_gpu(
    tmp_path: Path, trace: Path, device: str | None, buffer: int
) -> None:
    """On their way to host memory and back; on a CPU nothing is on a device of its own."""
    at = ("--gpu", device) if device else ()
    found = []
    for swapping in ({}, {"swapMemory": "8Gi"}):
        manifest = write_manifest(tmp_path, {"itl": {"p99": "50s"}}, dtype="BFloat16", **swapping)
        if device is None:
            manifest.write_text(manifest.read_text() + "  resources: {gpu: {count: 0}}\n")
        found.append(run(manifest, trace, *at, *SIZE, "--format", "json"))
    page = run(manifest, trace, *at, *SIZE).output

    without, beside = (json.loads(one.output)["memory"]["kv_bytes"] for one in found)
    assert without - beside == buffer
    assert ("swapping" in page) == bool(buffer)


def test_a_draft_model_is_counted_in_its_own_quantization(tmp_path: Path, trace: Path) -> None:
    """The manifest may quantise it alone."""
    sla = {"itl": {"p99": "50ms"}}
    small = {**DRAFT, "draftQuantization": "INT8"}
    pages = [
        run(
            write_manifest(tmp_path, sla, speculative=each),
            trace,
            "--gpu",
            "h100",
            *SIZE,
            *DRAFT_SIZE,
        )
        for each in (DRAFT, small)
    ]

    assert [result.exit_code for result in pages] == [0, 0]
    assert ["in INT8" in result.output for result in pages] == [False, True]


def test_a_draft_model_that_is_not_here_is_asked_for(tmp_path: Path, trace: Path) -> None:
    """With the flags that say its size."""
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}}, speculative=DRAFT)

    result = run(manifest, trace, "--gpu", "h100", *SIZE)

    assert result.exit_code == 1
    assert "spec.engine.speculative.draftModelUri: hf://org/small is not on" in result.output
    assert "--draft-params" in result.output


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ((*SIZE, *DRAFT_SIZE), "spec.engine.speculative.method must be Draft .* got None"),
        ((*SIZE, "--draft-params", "1B"), "--draft-params and --draft-kv-bytes go together"),
        ((*SIZE, "--embedding-params", "8B"), "--embedding-params must be fewer than --params"),
        (("--embedding-params", "1B"), "--embedding-params tells of --params"),
    ],
    ids=["no draft", "half a draft", "all embedding", "no params"],
)
def test_a_size_of_nothing_is_refused(
    manifest: Path, trace: Path, more: tuple[str, ...], words: str
) -> None:
    """What was told and cannot be used was meant for something."""
    result = run(manifest, trace, "--gpu", "h100", *more)

    assert result.exit_code == 1
    assert_matches(words, result.output)


def test_the_table_says_replicas_limits_and_the_arithmetic_of_memory(
    manifest: Path, trace: Path
) -> None:
    """All that a decision needs, on one screen."""
    result = run(manifest, trace, "--gpu", "h100", *SIZE)

    assert result.exit_code == 0
    assert "1 replica" in result.output
    for words in ("capacity of a pod", "max batch size", "token budget", "79.00 GiB x 0.9"):
        assert words in result.output


@pytest.mark.parametrize("quantization", ["INT8", "FP8Dynamic"])
def test_weights_of_a_byte_leave_more_to_the_cache(
    tmp_path: Path, trace: Path, quantization: str
) -> None:
    """All but embedding and head: told, or assumed to be rather many."""
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}}, quantization=quantization)
    told = ("--embedding-params", "1050M")

    def weight_bytes(*more: str) -> int:
        result = run(manifest, trace, "--gpu", "h100", *SIZE, *more, "--format", "json")
        return int(json.loads(result.output)["memory"]["weight_bytes"])

    by_hand = 6_950_000_000 + 2 * 1_050_000_000  # as Llama 3.1 8B has them
    assert weight_bytes(*told) == pytest.approx(by_hand, rel=0.002)
    assert weight_bytes(*told) > by_hand  # a scale for each output
    assert by_hand < weight_bytes() < 1.05 * by_hand


def test_what_a_file_holds_is_not_told_by_its_parameters(tmp_path: Path, trace: Path) -> None:
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50ms"}}, quantization="AsStored")
    manifest.write_text(manifest.read_text() + "  resources: {gpu: {count: 0}}\n")

    result = run(manifest, trace, *SIZE)

    assert result.exit_code == 1
    assert "quantization AsStored keeps what a GGUF file holds" in result.output


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


def a_memory(
    path: Path, *, device: str = "NVIDIA H100 80GB HBM3", features: tuple[str, ...] = ()
) -> Path:
    key = EngineKey("name", "abc", 16 * 10**9, "bfloat16", "1", device, features)
    theta = (8.0, 0.01, 0.02, 0.06, 0.0)
    entry = WarmStartEntry(key, SLA(), theta, 256, (), 64, 512, None, at=1.0)
    data = {"kind": "ConfigMap", "data": {"memory.json": encode(WarmStart((entry,)))}}
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


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_memory_of_other_ranks_is_not_taken(
    tmp_path: Path, manifest: Path, trace: Path, ranks: int
) -> None:
    """Two GPUs' steps are not one GPU's, though the whole model weighs the same."""
    memory = a_memory(tmp_path / "memory.json", features=("tensor_parallel_size=2",))
    share(manifest, ranks)

    result = run(manifest, trace, "--gpu", "h100", *SIZE, "--memory", str(memory))

    assert result.exit_code == (0 if ranks == 2 else 1)
    assert ("x/÷ 1.15" if ranks == 2 else "nothing is remembered") in result.output


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


@pytest.mark.parametrize(
    ("dtype", "assumed", "value_bytes"),
    [("Auto", "float32", 4), ("BFloat16", None, 2), ("Float32", None, 4)],
)
def test_auto_on_a_cpu_is_planned_as_the_wider_type(
    tmp_path: Path, trace: Path, dtype: str, assumed: str | None, value_bytes: int
) -> None:
    """What a machine measures at start is not known before: what is planned fits on any."""
    manifest = write_manifest(tmp_path, {"itl": {"p99": "50s"}}, dtype=dtype)

    document = json.loads(run(on_cpu(manifest), trace, *SIZE, "--format", "json").output)

    assert document["assumed_dtype"] == assumed
    assert document["memory"]["weight_bytes"] == value_bytes * 8 * 10**9
    table = run(manifest, trace, *SIZE).output
    assert ("planned as float32" in table) == (assumed is not None)


def test_auto_is_what_the_remembered_pod_chose(tmp_path: Path, trace: Path) -> None:
    """Its step times hold for the type that it served in."""
    memory = a_memory(tmp_path / "memory.json", device="cpu")
    manifest = on_cpu(write_manifest(tmp_path, {"itl": {"p99": "50s"}}))

    result = run(manifest, trace, *SIZE, "--memory", str(memory), "--format", "json")

    document = json.loads(result.output)
    assert document["assumed_dtype"] == "bfloat16"
    assert document["memory"]["weight_bytes"] == 16 * 10**9


def on_cpu(manifest: Path) -> Path:
    """Ask for no GPU."""
    document = yaml.safe_load(manifest.read_text())
    document["spec"]["resources"] = {"gpu": {"count": 0}}
    manifest.write_text(yaml.safe_dump(document))
    return manifest
