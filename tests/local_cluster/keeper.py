"""The process that holds a cluster: starts its parts in order, keeps them, ends with its stdin.

Run as `python keeper.py PLAN.json`, alone on the standard library. In an enclosed cluster it is
process 1 of the namespaces, so its end is everything's end. Whoever started it holds the other
end of its stdin: however that process dies, the pipe closes and the cluster goes.
It prints one JSON line once all parts are up, and another when a part fails.
"""

import contextlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

READY_WITHIN_S = 180
STOP_WITHIN_S = 10


class PartFailedError(Exception):
    """A part ended, or did not become ready in time."""


class Keeper:
    """The children, in the order in which they started."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.logs = Path(plan["logs"])
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.ended_at: dict[str, float] = {}

    def start(self) -> None:
        """Set up, then start each part when the one before it is ready."""
        for command in self.plan["setup"]:
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                raise PartFailedError(f"{' '.join(command)}: {result.stderr.strip()}")
        for process in self.plan["processes"]:
            self._spawn(process["name"], process["argv"])
            if process["ready"]:
                self._wait_until_ready(process)

    def check(self) -> None:
        """Raise when a part has ended that does not return; start again what does."""
        for process in self.plan["processes"]:
            name, pause_s = process["name"], process["returns_after_s"]
            code = self.children[name].poll() if name in self.children else None
            if code is None:
                continue
            if pause_s is None:
                raise PartFailedError(f"{name} ended with code {code}:\n{self._log_end(name)}")
            ended_at = self.ended_at.setdefault(name, time.monotonic())
            if time.monotonic() - ended_at >= pause_s:
                del self.ended_at[name]
                self._spawn(name, process["argv"])

    def stop(self) -> None:
        """End the parts, the last one first: with etcd gone the API server ignores SIGTERM."""
        for child in reversed(self.children.values()):
            child.terminate()
            try:
                child.wait(STOP_WITHIN_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    def _spawn(self, name: str, argv: list[str]) -> None:
        with (self.logs / f"{name}.log").open("ab") as log:
            self.children[name] = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.plan["environment"],
                start_new_session=True,
            )

    def _wait_until_ready(self, process: dict[str, Any]) -> None:
        give_up_at = time.monotonic() + READY_WITHIN_S
        while not is_ready(process["ready"], process["authority"]):
            self.check()
            if time.monotonic() > give_up_at:
                end = self._log_end(process["name"])
                raise PartFailedError(f"{process['name']} was not ready in time:\n{end}")
            if is_released(within_s=0.1):
                return

    def _log_end(self, name: str) -> str:
        text = (self.logs / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:])


def is_ready(address: str, authority: str | None) -> bool:
    """Whether something answers there now."""
    target = urlsplit(address)
    try:
        if target.scheme == "https":
            if authority is None or not Path(authority).exists():
                return False  # the server writes its certificate while it starts
            context = ssl.create_default_context(cafile=authority)
            with urllib.request.urlopen(address, timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        if target.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(target.path)
            return True
        with socket.create_connection((str(target.hostname), int(target.port or 0)), timeout=5):
            return True
    except (OSError, urllib.error.URLError):
        return False


def is_released(*, within_s: float) -> bool:
    """Whether the other end of stdin is gone; waits that long for it."""
    readable, _, _ = select.select([0], [], [], within_s)
    return bool(readable) and os.read(0, 4096) == b""


def report(**fields: object) -> None:
    """Report to the process that started us."""
    with contextlib.suppress(BrokenPipeError):  # nobody may be left to be told
        os.write(1, json.dumps(fields).encode() + b"\n")


def main(plan_file: str) -> int:
    """Start, keep, stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that holds us
    keeper = Keeper(json.loads(Path(plan_file).read_text()))
    try:
        keeper.start()
        report(up=True)
        while not is_released(within_s=0.5):
            keeper.check()
    except PartFailedError as failure:
        report(failed=str(failure))
        return 1
    finally:
        keeper.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
