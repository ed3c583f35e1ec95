"""A shell that runs a page's commands in order, and terminals for what goes on beside them."""

import contextlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from paceline_testing.free_port import free_port

_GRACE_S = 60.0
_AGAIN_AFTER_S = 1.0
_ADDRESS = re.compile(r"(?<=127\.0\.0\.1:)\d{4,5}\b|(?<=--port )\d{4,5}\b|\b\d{4,5}(?=:\d)")
"""Ports of this machine that a page names: the run takes free ones."""


class CommandEndlessError(Exception):
    """A command did not end, or did not print what was waited for."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command printed, how it ended and how long it took."""

    output: str
    status: int
    seconds: float


class Terminals:
    """One shell, and processes apart from it, in one folder; all of them end with it."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder = folder
        self._environment = dict(environment)
        self._ports: dict[str, str] = {}
        self._apart: list[subprocess.Popen[str]] = []
        self._shell = self._start(["bash", "--noprofile", "--norc"])

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Press Ctrl-C in every terminal, the newest first, and end the shell."""
        for process in [*reversed(self._apart), self._shell]:
            _end(process, signal.SIGINT if process is not self._shell else signal.SIGKILL)

    def run(self, command: str, *, within_s: float) -> Result:
        """Run a command in the shell to its end; what it starts with `&` runs on."""
        began = time.monotonic()
        mark = f"ended-{time.monotonic_ns()}"
        assert self._shell.stdin is not None
        self._shell.stdin.write(
            f"{{ {self._here(command)}\n}} < /dev/null 2>&1; printf '\\n{mark} %d\\n' $?\n"
        )
        self._shell.stdin.flush()
        output, end = _read(self._shell, rf"\n{mark} (\d+)\n", within_s)
        return Result(self._there(output), int(end[1]), time.monotonic() - began)

    def run_until(self, command: str, text: str, *, within_s: float) -> Result:
        """Run a command again and again until it prints the text."""
        began = time.monotonic()
        while True:
            left_s = began + within_s - time.monotonic()
            result = self.run(command, within_s=max(1.0, left_s))
            seconds = time.monotonic() - began
            if text in result.output and result.status == 0:
                return Result(result.output, result.status, seconds)
            if seconds > within_s:
                raise CommandEndlessError(f"{command}: no {text!r} in\n{result.output}")
            time.sleep(_AGAIN_AFTER_S)

    def run_apart(self, command: str, text: str, *, within_s: float) -> Result:
        """Start a command in a terminal of its own; return when a line of it has the text."""
        began = time.monotonic()
        process = self._start(["bash", "--noprofile", "--norc", "-c", self._here(command)])
        self._apart.append(process)
        output, end = _read(process, rf"[^\n]*{re.escape(self._here(text))}[^\n]*\n", within_s)
        return Result(self._there(output + end[0]), 0, time.monotonic() - began)

    def _start(self, command: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _here(self, text: str) -> str:
        """Put the run's own ports in the place of the page's."""
        return _ADDRESS.sub(lambda found: self.port(found[0]), text)

    def _there(self, output: str) -> str:
        """Put the page's ports back."""
        for named, taken in self._ports.items():
            output = re.sub(rf"\b{taken}\b", named, output)
        return output

    def port(self, named: str) -> str:
        """Return the port of this run that stands for one that a page names."""
        if named not in self._ports:
            self._ports[named] = str(free_port())
        return self._ports[named]

    def forward(self, named: str, taken: str) -> None:
        """Let a port that a page names be one that something listens on already."""
        self._ports[named] = taken


def _read(process: subprocess.Popen[str], end: str, within_s: float) -> tuple[str, re.Match[str]]:
    """Read on until the output has `end`; return what was before it."""
    assert process.stdout is not None
    read = ""
    for piece in _pieces(process.stdout.fileno(), time.monotonic() + within_s):
        read += piece
        if found := re.search(end, read):
            return read[: found.start()], found
    raise CommandEndlessError(f"{within_s:g} s, or its end, without {end!r} in\n{read}")


def _pieces(pipe: int, give_up_at: float) -> Iterator[str]:
    while (left_s := give_up_at - time.monotonic()) > 0:
        readable, _, _ = select.select([pipe], [], [], left_s)
        piece = os.read(pipe, 65536) if readable else b""
        if not piece:
            return
        yield piece.decode(errors="replace")


def _end(process: subprocess.Popen[str], number: int) -> None:
    """Signal the whole terminal; kill what has not ended in time."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    try:
        process.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
