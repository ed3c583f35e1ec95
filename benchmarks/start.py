"""Where the start of an engine goes, stage by stage, until its first token.

    python benchmarks/start.py --model builtin://smollm2-135m-instruct --runs 3

Starts `python -m paceline_engine` with the variables of this process, listens at its socket as a
sidecar does, and prints seconds for each stage: the process until its socket answers, imports and
the search for the model, reading its configuration, its weights, the rest until `Ready` (KV
memory, warm-up), and one token. Of several runs the fastest counts. With
`--after-weights S` the exit status is 1 where all that follows the weights took longer.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import zmq

from paceline_wire import (
    Failed,
    FromEngine,
    Hello,
    Loading,
    Outputs,
    Ready,
    Sampling,
    Submit,
    decode_from_engine,
    encode,
)

DEADLINE_S = 600.0
POLL_MS = 5
HELLO_EVERY_S = 0.02


@dataclass(frozen=True)
class Start:
    """Seconds of each stage of one start."""

    socket_s: float
    """Python, the settings, and the socket's first answer."""
    imports_s: float
    """Until the model is being read: torch is imported, the model found or downloaded."""
    reading_s: float
    """Its configuration; the first weight follows, and the tokenizer is made meanwhile."""
    weights_s: float
    """Read, converted and laid out; with the ops, which are loaded before the first."""
    memory_s: float
    """From the last weight to the warm-up: the KV cache and the tables of a step."""
    warming_up_s: float
    ready_s: float
    """From the warm-up to `Ready`: the step loop begins."""
    token_s: float
    """A prompt of one token and its answer of one."""

    @property
    def after_weights_s(self) -> float:
        """From the last weight to `Ready`."""
        return self.memory_s + self.warming_up_s + self.ready_s

    @property
    def until_ready_s(self) -> float:
        """Return the whole start."""
        before = self.socket_s + self.imports_s + self.reading_s + self.weights_s
        return before + self.after_weights_s


class Listener:
    """Notes when the engine first said each thing."""

    def __init__(self, run_dir: Path) -> None:
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 0)
        self._dealer.connect(f"ipc://{run_dir / 'engine.sock'}")

    def hear(self, process: subprocess.Popen[bytes], *, greets: bool) -> FromEngine:
        """Return the next message; greet as often as a sidecar could."""
        end = time.monotonic() + DEADLINE_S
        greeted_at = 0.0
        while time.monotonic() < end and process.poll() is None:
            if greets and time.monotonic() - greeted_at > HELLO_EVERY_S:
                greeted_at = time.monotonic()
                self._dealer.send(encode(Hello()))
            if self._dealer.poll(POLL_MS):
                message: FromEngine = decode_from_engine(self._dealer.recv())
                return message
        raise SystemExit(f"the engine said nothing for {DEADLINE_S} s, or ended")

    def send(self, submit: Submit) -> None:
        """Ask for something."""
        self._dealer.send(encode(submit))

    def close(self) -> None:
        """Leave."""
        self._dealer.close()
        self._context.term()


def start(model: str, run_dir: Path) -> Start:
    """Start an engine, take its first token, and stop it."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "paceline_engine"],
        env={
            **os.environ,
            "PACELINE_ENGINE_MODEL_URI": model,
            "PACELINE_ENGINE_RUN_DIR": str(run_dir),
            "PACELINE_ENGINE_TERMINATION_LOG": str(run_dir / "termination-log"),
        },
        stderr=subprocess.DEVNULL,
    )
    listener = Listener(run_dir)
    try:
        seen = _watch(listener, process)
        listener.send(Submit("first", [1], Sampling(max_tokens=1), arrived_at=time.monotonic()))
        while not isinstance(listener.hear(process, greets=False), Outputs):
            pass
        seen["token"] = time.monotonic()
    finally:
        listener.close()
        process.terminate()
        process.wait()
    return _stages(began, seen)


def _watch(listener: Listener, process: subprocess.Popen[bytes]) -> dict[str, float]:
    """Return when each stage was first heard of, until `Ready`."""
    seen: dict[str, float] = {}
    while True:
        message = listener.hear(process, greets=True)
        now = time.monotonic()
        seen.setdefault("socket", now)
        match message:
            case Loading():
                done = " done" if message.fraction >= 1 else ""
                seen.setdefault(f"{message.stage}{done}", now)
            case Failed():
                raise SystemExit(f"{message.reason}: {message.message}")
            case Ready():
                seen["ready"] = now
                return seen
            case _:
                pass


def _stages(began: float, seen: dict[str, float]) -> Start:
    order = ["socket", "fetching", "reading", "loading weights", "loading weights done"]
    order += ["warming up", "warming up done", "ready", "token"]
    times = [began]
    for name in order:
        # A stage that was over before the first Hello was heard took no time.
        times.append(max(seen.get(name, times[-1]), times[-1]))
    spent = [after - before for before, after in itertools.pairwise(times)]
    socket, imports, finding, reading, weights, memory, warming_up, ready, token = spent
    return Start(socket, imports, finding + reading, weights, memory, warming_up, ready, token)


def main() -> int:
    """Print the fastest of several starts; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="builtin://smollm2-135m-instruct")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--after-weights", type=float, default=float("inf"), metavar="S")
    chosen = parser.parse_args()
    starts = []
    for _ in range(chosen.runs):
        with tempfile.TemporaryDirectory(prefix="paceline-start-") as run_dir:
            starts.append(start(chosen.model, Path(run_dir)))
    best = min(starts, key=lambda each: each.until_ready_s)
    for name, seconds in asdict(best).items():
        print(f"{name:16} {seconds:6.2f}")
    print(f"{'until ready':16} {best.until_ready_s:6.2f}")
    print(f"{'after weights':16} {best.after_weights_s:6.2f}")
    print(json.dumps(asdict(best)))
    return int(min(each.after_weights_s for each in starts) > chosen.after_weights)


if __name__ == "__main__":
    sys.exit(main())
