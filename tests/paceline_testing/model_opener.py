"""Opens models that may be anything, in a process of its own whose memory is capped.

`python -m paceline_testing.model_opener MODEL BYTES` loads a valid model, then reads a path a line,
loads what lies there as the engine would, and answers in a line what became of it.
"""

import json
import os
import resource
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_MEMORY_BYTES = 768 * 1024 * 1024
"""Beside what the process has after its first model, nothing that is small may take more."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What became of one model."""

    refusal: str
    """The name of the engine's error; empty where the model was loaded."""
    message: str


class ModelOpener:
    """Such a process, as a context manager."""

    def __init__(self, first: Path, *, memory_bytes: int = _MEMORY_BYTES) -> None:
        """Take a valid model first: what the process holds after it is not counted."""
        self._arguments = [str(first), str(memory_bytes)]

    def __enter__(self) -> Self:
        """Start it."""
        command = [sys.executable, "-m", "paceline_testing.model_opener", *self._arguments]
        places = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()

    def open(self, path: Path) -> Opened:
        """Load what lies there. Raises AssertionError where the process crashed or failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the process died of {path}: {self._process.wait()}"
        answer = json.loads(line)
        assert "fault" not in answer, answer["fault"]
        return Opened(**answer)


def main() -> None:
    """Serve paths from stdin."""
    from paceline_engine.errors import EngineError  # noqa: PLC0415 - torch takes seconds
    from paceline_engine.loading.load import load_model  # noqa: PLC0415 - as above
    from paceline_engine.settings import Settings  # noqa: PLC0415 - as above

    def load(path: str) -> None:
        uri = f"file://{path}"
        settings = Settings(
            model_uri=uri, device="cpu", dtype="float32", threads=1, kv_cache_bytes=1 << 22
        )
        load_model(settings, lambda _stage, _fraction: None)

    load(sys.argv[1])
    _cap_memory(int(sys.argv[2]))
    for line in sys.stdin:
        try:
            load(line.rstrip("\n"))
        except EngineError as refusal:
            answer = {"refusal": refusal.reason, "message": refusal.message}
        except BaseException:  # noqa: BLE001 - whatever it is, it is not the engine's own error
            answer = {"fault": traceback.format_exc()}
        else:
            answer = {"refusal": "", "message": ""}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _cap_memory(memory_bytes: int) -> None:
    """Let this process take so much more address space than it has, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


if __name__ == "__main__":
    main()
