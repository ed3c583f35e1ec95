"""SIGTERM: refuse new, finish running, then leave."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import openai
import pytest

from paceline_testing.free_port import free_port
from paceline_testing.running_sidecar import Sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until


@pytest.fixture
def script() -> Script:
    return Script(reply="the whole answer", hold_after=3)


def test_what_runs_is_finished_and_what_comes_is_refused(
    start: Callable[..., Sidecar], engine: ScriptedEngine
) -> None:
    """No client sees a broken answer because a pod was replaced."""
    sidecar = start(drain_s=60.0)
    wait_until(sidecar.ready)
    stream = iter(
        sidecar.openai.completions.create(model="scripted", prompt="Hi", max_tokens=99, stream=True)
    )
    pieces = [next(stream).choices[0].text]

    sidecar.leave()
    wait_until(lambda: not sidecar.ready())
    with pytest.raises(openai.InternalServerError) as refused:
        sidecar.openai.completions.create(model="scripted", prompt="Hi")
    engine.script.hold_after = None
    pieces += [chunk.choices[0].text for chunk in stream]

    assert (refused.value.status_code, refused.value.code) == (503, "draining")
    assert "".join(pieces) == "the whole answer"
    sidecar.join()


@pytest.mark.usefixtures("engine")
def test_what_outlasts_the_drain_time_is_told_so(start: Callable[..., Sidecar]) -> None:
    """An error event, not a cut connection."""
    sidecar = start(drain_s=0.2)
    wait_until(sidecar.ready)
    stream = iter(sidecar.openai.completions.create(model="scripted", prompt="Hi", stream=True))
    next(stream)

    sidecar.leave()

    with pytest.raises(openai.APIError, match="went away"):
        list(stream)
    sidecar.join()


@pytest.mark.usefixtures("engine")
def test_who_has_not_heard_that_it_leaves_is_served(run_dir: Path) -> None:
    """Over an open connection and over a new one; each answer is its connection's last."""
    with _process(run_dir, lame_duck_s=3600, drain_s=3600) as (process, url):
        wait_until(lambda: _answers(f"{url}/health/ready"))
        with httpx.Client(base_url=url, timeout=30) as client:
            assert "connection" not in client.get("/health/live").headers

            process.send_signal(signal.SIGTERM)
            wait_until(lambda: not _answers(f"{url}/health/ready"))
            body = {"model": "scripted", "prompt": "Hi", "max_tokens": 2}
            over_an_open_one = client.post("/v1/completions", json=body)
            over_a_new_one = httpx.post(f"{url}/v1/completions", json=body, timeout=30)

        for answer in (over_an_open_one, over_a_new_one):
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_the_process_leaves_with_zero_after_sigterm(run_dir: Path) -> None:
    """As Kubernetes starts and stops it: settings from the environment."""
    with _process(run_dir, lame_duck_s=0.2) as (process, url):
        wait_until(lambda: _answers(f"{url}/health/live"))
        assert not _answers(f"{url}/health/ready")

        process.send_signal(signal.SIGTERM)

        assert process.wait(timeout=30) == 0


def test_bad_settings_are_named_and_end_the_process() -> None:
    """Before anything listens."""
    environment = {**os.environ, "PACELINE_SIDECAR_PORT": "70000"}
    command = [sys.executable, "-m", "paceline_sidecar"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "PACELINE_SIDECAR_PORT" in done.stderr


@contextmanager
def _process(run_dir: Path, **settings: float) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A sidecar with a process of its own, and its public URL."""
    port, admin_port = free_port(), free_port()
    environment = {
        **os.environ,
        "PACELINE_SIDECAR_RUN_DIR": str(run_dir),
        "PACELINE_SIDECAR_HOST": "127.0.0.1",
        "PACELINE_SIDECAR_PORT": str(port),
        "PACELINE_SIDECAR_ADMIN_PORT": str(admin_port),
        **{f"PACELINE_SIDECAR_{name.upper()}": str(value) for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "paceline_sidecar"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).status_code == 200
    except httpx.TransportError:
        return False
