"""Runs a command's coroutine to its end, children included."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

import click

from paceline_cli.errors import LocalError

_Result = TypeVar("_Result")


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run to the end; SIGINT and SIGTERM end the children first.

    Python leaves SIGINT alone where it was ignored at the start, as in a shell's background jobs.
    """

    async def guarded() -> _Result:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task

        def stop() -> None:
            if not task.cancelling():  # a second signal must not cut the children's end short
                task.cancel()

        for sent in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(sent, stop)
        return await work

    try:
        return asyncio.run(guarded())
    except (KeyboardInterrupt, asyncio.CancelledError):
        click.echo("stopped")
        sys.exit(130)
    except ExceptionGroup as group:
        problem = _first(group)
        if isinstance(problem, LocalError):
            raise problem from group
        raise


def _first(problem: Exception) -> Exception:
    """The innermost first error: task groups wrap what their tasks raise."""
    while isinstance(problem, ExceptionGroup):
        problem = problem.exceptions[0]
    return problem
