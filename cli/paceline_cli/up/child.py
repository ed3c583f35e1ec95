"""A child process that is kept running: restarted when it dies, as a kubelet would."""

import asyncio
import contextlib
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_LONG_RUN_S = 60.0
"""A child that ran this long starts over with the shortest pause."""


@dataclass(frozen=True, slots=True)
class Program:
    """What to run."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    grace_s: float
    """From SIGTERM to SIGKILL."""


@dataclass(frozen=True, slots=True)
class ChildExit:
    """One unwanted end of a child."""

    name: str
    code: int
    ran_s: float
    restart_in_s: float
    log: Path


OnExit = Callable[[ChildExit], None]
"""Called before each restart; may raise to give up."""


def python_module(module: str) -> tuple[str, ...]:
    """The command line of a module that ends when this process does."""
    return (sys.executable, "-m", "paceline_cli.up.exits_with_parent", sys.executable, "-m", module)


@contextlib.asynccontextmanager
async def kept_running(
    program: Program,
    on_exit: OnExit,
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> AsyncIterator[None]:
    """Keep `program` running inside the block; it has ended when the block is left."""
    async with asyncio.TaskGroup() as group:
        keeper = group.create_task(_keep_running(program, on_exit, sleep))
        yield
        keeper.cancel()


async def _keep_running(
    program: Program, on_exit: OnExit, sleep: Callable[[float], Awaitable[None]]
) -> None:
    clock = asyncio.get_running_loop().time
    pause_s = _FIRST_PAUSE_S
    while True:
        started_at = clock()
        code = await _run_once(program)
        ran_s = clock() - started_at
        pause_s = _FIRST_PAUSE_S if ran_s > _LONG_RUN_S else pause_s
        on_exit(ChildExit(program.name, code, ran_s, pause_s, program.log))
        await sleep(pause_s)
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)


async def _run_once(program: Program) -> int:
    with program.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *program.argv,
            env=os.environ | program.environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C is for us alone: we stop children in their order
        )
    try:
        return await process.wait()
    finally:
        await _stop(process, program.grace_s)


async def _stop(process: Process, grace_s: float) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
