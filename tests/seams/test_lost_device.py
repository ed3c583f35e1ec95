"""A GPU that reads wild memory, seen by whoever asks: 503, and an answer from the next engine."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.waiting import wait_until

START_S = 120.0


@pytest.fixture
def run_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="pl-"))  # short: a socket's path may have 107 bytes
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def sidecar(run_dir: Path) -> Iterator[Sidecar]:
    sidecar = start_sidecar(run_dir, served_name="fake")
    yield sidecar
    sidecar.leave()
    sidecar.join()


def an_engine(run_dir: Path, fault: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "paceline_testing.fake_engine"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PACELINE_ENGINE_RUN_DIR": str(run_dir),
            "PACELINE_ENGINE_TERMINATION_LOG": str(run_dir / "words"),
            "PACELINE_ENGINE_OVERLAP": "on",
            "FAKE_ENGINE_FAULT": fault,
        },
    )


def ask(sidecar: Sidecar) -> int:
    """Output tokens of an answer."""
    answer = sidecar.openai.completions.create(
        model="fake", prompt="Hi", max_tokens=8, temperature=0
    )
    assert answer.usage is not None
    return answer.usage.completion_tokens


def test_after_an_illegal_access_nobody_gets_a_token_till_another_engine_serves(
    sidecar: Sidecar, run_dir: Path
) -> None:
    """The kernel of a step went wrong; that is told when its tokens are waited for."""
    engine = an_engine(run_dir, "late")
    try:
        wait_until(sidecar.ready, within_s=START_S)

        with pytest.raises(openai.InternalServerError) as lost:
            ask(sidecar)
        assert engine.wait(START_S) == 1
        with pytest.raises(openai.InternalServerError) as refused:
            ask(sidecar)
        assert (lost.value.status_code, refused.value.status_code) == (503, 503)
        assert not sidecar.ready()

        engine = an_engine(run_dir, "")
        wait_until(sidecar.ready, within_s=START_S)
        assert ask(sidecar) == 8
    finally:
        engine.kill()
        engine.wait()
