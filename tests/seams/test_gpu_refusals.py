"""A GPU that cannot serve a model: one sentence, exit status 1, and the condition that shows it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.loading.load import load_model
from paceline_engine.pacing import make_pacer
from paceline_engine.process.process import serve
from paceline_engine.settings import Settings
from paceline_operator.observe import ContainerExit, ContainerStatus, Observation
from paceline_operator.service_conditions import service_conditions
from paceline_operator.write_plan import plan_writes
from paceline_testing.faked_gpu import said_to_be
from paceline_testing.services import a_pod, a_service
from paceline_testing.tiny_model import make_tiny_model
from paceline_tuner.condition import Condition

H200 = "H200, all of it taken"


@dataclass(frozen=True, slots=True)
class Refused:
    """What is refused, and how that is told."""

    machine: str
    reason: str
    sentence: str
    model: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "a GPU that is too old": Refused(
        "T4",
        "UnsupportedDevice",
        "The kernels need a GPU of compute capability 8.0 or newer, got 7.5 (Tesla T4); "
        "PACELINE_ENGINE_DEVICE=cpu serves without it.",
    ),
    "a driver that torch cannot use": Refused(
        "old driver",
        "UnsupportedDevice",
        "NVIDIA's driver 470.1 is there, but torch, built for CUDA 13.2, finds no device: The "
        "NVIDIA driver on your system is too old; it needs a driver for CUDA 13.2 and a GPU that "
        "it shows, or PACELINE_ENGINE_DEVICE=cpu serves without it.",
    ),
    "too little memory": Refused(
        H200,
        "DoesNotFit",
        "The weights need 0.00 GiB (84,432 parameters in bfloat16), but only 0.00 GiB of 8.00 GiB "
        "are free.",
    ),
    "a head that no kernel covers": Refused(
        H200,
        "UnsupportedModel",
        "The model's config: head_dim must be at most 256 on a GPU, got 258.",
        model={"head_dim": 258},
    ),
    "a group that no kernel covers": Refused(
        H200,
        "UnsupportedModel",
        "The model's config: num_attention_heads must be at most 16 times num_key_value_heads on a "
        "GPU, got 17 and 1.",
        model={"num_attention_heads": 17, "num_key_value_heads": 1, "hidden_size": 34},
    ),
    "more GPUs than there are": Refused(
        H200,
        "BadSettings",
        "PACELINE_ENGINE_TENSOR_PARALLEL_SIZE is 2, but torch finds 1 CUDA devices.",
        settings={"tensor_parallel_size": 2},
    ),
}


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """An engine takes SIGTERM for itself."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("refused", CASES.values(), ids=CASES.keys())
def test_what_a_gpu_cannot_serve_is_a_condition(
    refused: Refused, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What was found and what is needed, once, from the engine's log to the service's status."""
    make_tiny_model(tmp_path / "model", "llama", **refused.model)
    settings = Settings(
        model_uri=f"file://{tmp_path / 'model'}",
        run_dir=tmp_path,
        termination_log=tmp_path / "words",
        **refused.settings,
    )

    with said_to_be(refused.machine):
        assert serve(settings, load_model, make_pacer) == 1

    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert said == [f"{refused.reason}: {refused.sentence}"]
    words = (tmp_path / "words").read_text()
    assert json.loads(words) == {"reason": refused.reason, "message": refused.sentence}
    assert json.loads((tmp_path / "engine.json").read_text())["state"] == "failed"
    found = conditions(words)
    for kind in ("Ready", "ModelAvailable"):
        assert (found[kind].status, found[kind].reason) == ("False", refused.reason)
        assert found[kind].message == refused.sentence
    assert found["Stalled"].status == "True"


def test_the_process_ends_with_1_and_without_a_traceback(tmp_path: Path) -> None:
    """A person who reads the container's log need not know Python."""
    make_tiny_model(tmp_path, "llama")
    run = subprocess.run(
        [sys.executable, "-m", "paceline_testing.faked_gpu"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "FAKED_GPU": "T4",
            "PACELINE_ENGINE_MODEL_URI": f"file://{tmp_path}",
            "PACELINE_ENGINE_RUN_DIR": str(tmp_path),
            "PACELINE_ENGINE_TERMINATION_LOG": str(tmp_path / "words"),
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert run.returncode == 1
    assert "Traceback" not in run.stderr
    said = [line for line in run.stderr.splitlines() if " ERROR " in line]
    assert len(said) == 1
    assert CASES["a GPU that is too old"].sentence in said[0]


def test_an_engine_that_keeps_crashing_says_by_what() -> None:
    """A defect has no condition of its own, and starting again may help: the workload's tells."""
    words = json.dumps({"reason": "EngineCrashed", "message": "AcceleratorError: CUDA error"})
    found = conditions(words)

    assert found["WorkloadAvailable"].reason == "CrashLoop"
    assert "AcceleratorError: CUDA error" in found["WorkloadAvailable"].message
    assert found["Stalled"].status == "False"


def conditions(words: str) -> dict[str, Condition]:
    """What the operator concludes of a container that left with these words."""
    left = ContainerStatus(
        waiting_reason="CrashLoopBackOff", last_exit=ContainerExit("Error", 1, words)
    )
    pod = a_pod(is_ready=False, engine=left)
    observed = Observation(a_service(), {}, (pod,), None, datetime.now(UTC))
    return {
        one.type: one
        for one in service_conditions(observed, plan_writes(observed.service.spec), problem="")
    }
