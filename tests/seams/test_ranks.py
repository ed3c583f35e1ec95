"""A pod's variables start an engine of two ranks, and its refusals reach the conditions."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from paceline_api.inference_service import InferenceService
from paceline_api.pod import environment
from paceline_operator.observe import ContainerExit, ContainerStatus, Observation
from paceline_operator.service_conditions import service_conditions
from paceline_operator.write_plan import plan_writes
from paceline_testing.ending import end
from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.services import a_pod, a_service
from paceline_testing.tiny_model import make_tiny_model
from paceline_testing.waiting import wait_until

PROMPT = [5, 6, 7, 8]
_START_S = 180.0
_LISTENS = "0A"  # as /proc/net/tcp writes the state
_LOOPBACK = "0100007F"


def _service(model: Path) -> InferenceService:
    return a_service(
        model={"uri": f"file://{model}"},
        engine={"tensorParallelSize": 2, "capacity": {"maxBatchSize": 8, "maxTokenBudget": 64}},
        resources={"gpu": {"count": 0}, "cpu": 2},
    )


def _engine(service: InferenceService, run_dir: Path) -> subprocess.Popen[bytes]:
    """The container's variables, with this machine's paths and little memory."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
    rendered = {entry["name"]: entry["value"] for entry in environment.engine(service)}
    here = {
        "PACELINE_ENGINE_RUN_DIR": str(run_dir),
        "PACELINE_ENGINE_TERMINATION_LOG": str(run_dir / "termination-log"),
        "PACELINE_ENGINE_KV_CACHE_BYTES": str(1 << 20),
    }
    return subprocess.Popen([sys.executable, "-m", "paceline_engine"], env=ours | rendered | here)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pl-"))  # short: a socket's path may have 107 bytes
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def ranks(tmp_path: Path, run_dir: Path) -> Iterator[tuple[Sidecar, int]]:
    """The sidecar in front of two ranks, and rank 0's process."""
    make_tiny_model(tmp_path, "llama")
    engine = _engine(_service(tmp_path), run_dir)
    sidecar = start_sidecar(run_dir, served_name="tiny")
    try:
        wait_until(lambda: sidecar.ready() or engine.poll() is not None, within_s=_START_S)
        assert engine.poll() is None, "the engine did not start"
        yield sidecar, engine.pid
    finally:
        sidecar.leave()
        try:
            sidecar.join()
        finally:
            end(engine)


def test_two_ranks_serve_with_the_rendered_variables(ranks: tuple[Sidecar, int]) -> None:
    """They answer, and where they meet nothing outside the pod can call."""
    sidecar, pid = ranks
    answer = sidecar.openai.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=4, temperature=0, extra_body={"ignore_eos": True}
    )
    members = [pid, *_children(pid)]
    addresses = {address for member in members for address in _listening(member)}

    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert len(members) > 1
    assert addresses == {_LOOPBACK}


def test_a_model_that_cannot_be_cut_is_a_condition(tmp_path: Path, run_dir: Path) -> None:
    """The engine's sentence, whole: only it has seen the weights."""
    make_tiny_model(tmp_path, "llama", num_attention_heads=6, num_key_value_heads=3, head_dim=8)
    service = _service(tmp_path)
    engine = _engine(service, run_dir)
    assert engine.wait(timeout=_START_S) == 1

    words = (run_dir / "termination-log").read_text()
    left = ContainerStatus(
        waiting_reason="CrashLoopBackOff", last_exit=ContainerExit("Error", 1, words)
    )
    observed = Observation(
        service, {}, (a_pod(is_ready=False, engine=left),), None, datetime.now(UTC)
    )
    found = {
        one.type: one
        for one in service_conditions(observed, plan_writes(observed.service.spec), problem="")
    }

    assert found["Ready"].reason == found["Stalled"].reason == "BadSettings"
    assert found["Ready"].message == (
        "PACELINE_ENGINE_TENSOR_PARALLEL_SIZE is 2, which does not divide the model's "
        "3 key and value heads."
    )


def _children(pid: int) -> list[int]:
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for one in lists for child in one.read_text().split()]


def _listening(pid: int) -> set[str]:
    """Addresses that the process listens on, as the kernel writes them."""
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()]
    own = {link.removeprefix("socket:[").rstrip("]") for link in links if "socket:" in link}
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = row.split()[:10]
            if state == _LISTENS and inode in own:
                found.add(local.partition(":")[0])
    return found
