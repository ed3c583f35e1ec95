"""An engine that hangs, as a client of the sidecar sees it: both are the real processes' code."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.waiting import wait_until

TESTS = Path(__file__).parents[1]
DEADLINE_S = 60.0
StartEngine = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Short: the path of a Unix socket may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="pl-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start_engine(run_dir: Path) -> Iterator[StartEngine]:
    started: list[subprocess.Popen[bytes]] = []

    def start(fault: str, *, step_timeout_s: float = 3.0) -> "subprocess.Popen[bytes]":
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(TESTS), os.environ.get("PYTHONPATH", ""))),
            "PACELINE_ENGINE_RUN_DIR": str(run_dir),
            "PACELINE_ENGINE_TERMINATION_LOG": str(run_dir / "termination-log"),
            "PACELINE_ENGINE_STEP_TIMEOUT_S": str(step_timeout_s),
            "FAKE_ENGINE_FAULT": fault,
        }
        command = [sys.executable, "-m", "paceline_testing.fake_engine"]
        started.append(subprocess.Popen(command, env=environment))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def sidecar(run_dir: Path) -> Iterator[Sidecar]:
    sidecar = start_sidecar(run_dir, heartbeat_s=5.0)
    yield sidecar
    sidecar.leave()
    sidecar.join()


def _ask(sidecar: Sidecar, errors: list[openai.APIError], *, stream: bool) -> None:
    try:
        answer = sidecar.openai.completions.create(
            model="fake", prompt="Hi", max_tokens=400, stream=stream
        )
        if stream:
            list(answer)
    except openai.APIError as error:
        errors.append(error)


@pytest.mark.parametrize("fault", ["hang", "spin", "lock"])
def test_a_hung_engine_is_answered_for_and_started_again(
    start_engine: StartEngine, sidecar: Sidecar, fault: str
) -> None:
    """Its process ends, which is what a kubelet or `paceline up` waits for."""
    process = start_engine(fault)
    wait_until(sidecar.ready, within_s=DEADLINE_S)
    errors: list[openai.APIError] = []
    asking = threading.Thread(target=_ask, args=(sidecar, errors), kwargs={"stream": False})

    asking.start()
    asking.join(DEADLINE_S)

    assert [getattr(error, "status_code", None) for error in errors] == [503]
    assert not sidecar.ready()
    assert process.wait(DEADLINE_S) == 1
    start_engine("", step_timeout_s=60.0)
    wait_until(sidecar.ready, within_s=DEADLINE_S)
    assert sidecar.openai.completions.create(model="fake", prompt="Hi", max_tokens=2).choices


def test_an_engine_that_is_stopped_as_a_whole_is_answered_for(
    start_engine: StartEngine, sidecar: Sidecar
) -> None:
    """Nothing of it can tell; should it go on, it serves on, without what was given up."""
    process = start_engine("slow", step_timeout_s=600.0)
    wait_until(sidecar.ready, within_s=DEADLINE_S)
    errors: list[openai.APIError] = []
    asking = [
        threading.Thread(target=_ask, args=(sidecar, errors), kwargs={"stream": stream})
        for stream in (True, False)
    ]
    for thread in asking:
        thread.start()
    wait_until(lambda: _running(sidecar) == 2)

    process.send_signal(signal.SIGSTOP)
    for thread in asking:
        thread.join(DEADLINE_S)

    assert sorted("silent" in str(error) for error in errors) == [True, True]
    assert not sidecar.ready()
    process.send_signal(signal.SIGCONT)
    wait_until(sidecar.ready, within_s=DEADLINE_S)
    wait_until(lambda: _running(sidecar) == 0, within_s=DEADLINE_S)


def _running(sidecar: Sidecar) -> float:
    text = sidecar.public.get("/metrics").text
    rows = [row for row in text.splitlines() if row.startswith("vllm:num_requests_running{")]
    return float(rows[0].rpartition(" ")[2]) if rows else -1.0
