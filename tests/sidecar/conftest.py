"""A whole sidecar on loopback ports, in front of a scripted engine."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline_testing.running_sidecar import Sidecar, start_sidecar
from paceline_testing.scripted_engine import Script, ScriptedEngine
from paceline_testing.waiting import wait_until


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """Short: the path of a Unix socket may have 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="pl-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def engine(run_dir: Path, script: Script) -> Iterator[ScriptedEngine]:
    with ScriptedEngine(run_dir, script) as engine:
        yield engine


StartSidecar = Callable[..., Sidecar]


@pytest.fixture
def start(run_dir: Path) -> Iterator[StartSidecar]:
    """Starts sidecars, and stops what it started."""
    started: list[Sidecar] = []

    def start(**changes: Any) -> Sidecar:
        started.append(start_sidecar(run_dir, **changes))
        return started[-1]

    yield start
    for sidecar in started:
        if sidecar.thread.is_alive():
            sidecar.leave()
        sidecar.join()


@pytest.fixture
def sidecar(engine: ScriptedEngine, start: StartSidecar) -> Sidecar:
    """Ready to serve."""
    del engine
    sidecar = start()
    wait_until(sidecar.ready)
    return sidecar


@pytest.fixture(scope="module")
def engine_of_module() -> Iterator[ScriptedEngine]:
    """One for all tests of a module that do not disturb it."""
    path = Path(tempfile.mkdtemp(prefix="pl-"))
    with ScriptedEngine(path) as engine:
        yield engine
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def sidecar_of_module(engine_of_module: ScriptedEngine) -> Iterator[Sidecar]:
    """One for all tests of a module that leave it as it is."""
    # A busy machine starves the engine's thread of its heartbeats: that is no fault to test here.
    sidecar = start_sidecar(engine_of_module.run_dir, heartbeat_s=60.0)
    wait_until(sidecar.ready)
    yield sidecar
    sidecar.leave()
    sidecar.join()
