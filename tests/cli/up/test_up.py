"""`paceline up` on the real engine: it serves, takes hot changes, explains itself and leaves."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

QUICKSTART = Path(__file__).parents[3] / "examples/quickstart.yaml"
DEADLINE_S = 300.0
END_S = 60.0
"""More than the children's grace."""

pytestmark = pytest.mark.model


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A copy of the quickstart that the test may edit."""
    path = tmp_path / "service.yaml"
    path.write_text(QUICKSTART.read_text())
    return path


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """State apart from that of this machine's user."""
    return os.environ | {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
async def up(manifest: Path, environment: dict[str, str]) -> AsyncIterator[Process]:
    """`paceline up`, told to leave at the end whatever happened."""
    process = await paceline("up", "-f", str(manifest), environment=environment)
    yield process
    if process.returncode is None:
        process.terminate()
        try:
            await asyncio.wait_for(process.communicate(), END_S)
        except TimeoutError:
            process.kill()
            await process.communicate()


async def paceline(*arguments: str, environment: dict[str, str]) -> Process:
    command = "from paceline_cli.__main__ import main; main()"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", command, *arguments,
        env=environment, stdin=PIPE, stdout=PIPE, stderr=STDOUT,
    )  # fmt: skip


async def output_of(*arguments: str, environment: dict[str, str], text: str = "") -> str:
    process = await paceline(*arguments, environment=environment)
    try:
        output, _ = await process.communicate(text.encode())
    except asyncio.CancelledError:
        process.kill()
        raise
    assert process.returncode == 0, output.decode()
    return output.decode()


async def line_with(process: Process, text: str) -> str:
    """Read on until a line says `text`."""
    assert process.stdout is not None
    seen = []
    async for line in process.stdout:
        seen.append(line.decode())
        if text in seen[-1]:
            return seen[-1]
    raise AssertionError(f"ended without {text!r}: {''.join(seen)}")


def edit(manifest: Path, old: str, new: str) -> None:
    """As a person would, with an editor."""
    text = manifest.read_text()
    assert old in text
    manifest.write_text(text.replace(old, new))


async def test_a_service_is_served_changed_explained_and_ended(
    up: Process, manifest: Path, environment: dict[str, str]
) -> None:
    """What a person does in the first minutes, in one start of the engine."""
    async with asyncio.timeout(DEADLINE_S):
        await line_with(up, "ready at http://127.0.0.1:")

        answer = await output_of(
            "chat", "--max-tokens", "8", "--temperature", "0",
            text="What is the capital of France?", environment=environment,
        )  # fmt: skip
        assert "Paris" in answer

        edit(manifest, "500ms", "900ms")
        await line_with(up, "new hot fields applied, nothing restarted")
        await line_with(up, "of 900 ms")

        edit(manifest, "maxBatchSize: 32", "maxBatchSize: 16")
        await line_with(up, "spec.tuning.batchSize: Invalid value")  # initial is above it
        edit(manifest, "initial: 32", "initial: 16")
        await line_with(up, "needs a restart of `paceline up`: spec.engine")

        explanation = await output_of("explain", "pod/quickstart-0", environment=environment)
        assert "reason" in explanation
        assert "SLA:itl" in explanation

        up.send_signal(signal.SIGINT)
        assert up.stdout is not None
        assert (await up.stdout.read()).decode().endswith("stopped\n")
        assert await up.wait() == 130
