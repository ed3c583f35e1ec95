"""What the sidecar adds to each token: processor time, delay and memory, beside bare servers.

An engine that gives every request a token in each step, a sidecar as a pod runs it, and clients
that only read, each a process. `python benchmarks/edge.py` prints the table and writes it to
`benchmarks/results/edge.md`.

Processor time is the sidecar's own, from the kernel's scheduler: it means the same on a machine
that others use. Tokens a second and delays are those of this machine with what ran beside.
"""

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("benchmarks", "tests", "engine", "sidecar")]

from edge_load.board import Board  # noqa: E402 - as above

RESULT = ROOT / "benchmarks" / "results" / "edge.md"
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Setup:
    """One line of the table."""

    server: str
    path: str
    streams: int
    interval_s: float
    """Between two steps; 0 goes as fast as the clients read."""

    def __str__(self) -> str:
        """Name it in a table."""
        pace = f"{1 / self.interval_s:.0f} a second each" if self.interval_s else "as fast as read"
        return f"{self.server}, {self.streams} streams, {pace}"


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians of its repeats."""

    cpu_us: float
    """Processor time of the server for each token."""
    tokens_per_s: float
    delay_p50_ms: float
    delay_p99_ms: float
    kib_per_stream: float


@contextmanager
def process(*command: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A child of ours, ended with the block."""
    path = os.pathsep.join(sys.path[:4])
    child = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if not os.environ.get("EDGE_VERBOSE") else None,
        text=True,
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait()


def cpu_s(pid: int) -> float:
    """Processor time of all threads, those of the kernel's work for them included."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def memory_kib(pid: int) -> float:
    """What the process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


def free_port() -> int:
    """One that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_for(port: int, path: str = "/health/ready") -> None:
    """Return once the server answers with 200, or takes connections where no path is given."""
    for _ in range(600):
        try:
            if not path:
                socket.create_connection(("127.0.0.1", port)).close()
                return
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing answers on {port}")


@contextmanager
def server_of(kind: str, folder: Path) -> Iterator[tuple[int, int]]:
    """A server and its engine; gives process id and port."""
    port, board = free_port(), str(folder / "board")
    with ExitStack() as stack:
        if kind == "sidecar":
            stack.enter_context(process("-m", "edge_load.instant_engine", str(folder), board))
            settings = {
                "RUN_DIR": str(folder),
                "HOST": "127.0.0.1",
                "PORT": str(port),
                "ADMIN_PORT": str(free_port()),
            }
            prefixed = {f"PACELINE_SIDECAR_{name}": value for name, value in settings.items()}
            child = stack.enter_context(process("-m", "paceline_sidecar", **prefixed))
            wait_for(port)
        else:
            child = stack.enter_context(process("-m", "edge_load.floors", kind, board, str(port)))
            wait_for(port, "")
        yield child.pid, port


def measure(setup: Setup, *, seconds: float, repeats: int) -> Measured:
    """Run one line of the table on processes of its own."""
    with tempfile.TemporaryDirectory(prefix="edge-") as name, ExitStack() as stack:
        folder = Path(name)
        board = Board(folder / "board")
        board.interval_s = max(setup.interval_s, 0.1)  # until all streams are open
        pid, port = stack.enter_context(server_of(setup.server, folder))
        command = ("-m", "edge_load.clients", str(folder / "board"), str(port), setup.path)
        load = (str(setup.streams), str(seconds))
        # What the first requests of a process load and compile is no stream's.
        with process(*command, "20", str(seconds)) as first:
            _ask(first, "ready")
        time.sleep(1.0)
        before_kib = memory_kib(pid)
        clients = stack.enter_context(process(*command, *load))
        _ask(clients, "ready")
        held_kib = memory_kib(pid) - before_kib
        board.interval_s = setup.interval_s
        time.sleep(0.5)
        rows = [_one(clients, pid) for _ in range(repeats)]
        cpu_us, rate, p50_ms, p99_ms = map(statistics.median, zip(*rows, strict=True))
        return Measured(cpu_us, rate, p50_ms, p99_ms, held_kib / setup.streams)


def _one(clients: subprocess.Popen[str], pid: int) -> tuple[float, float, float, float]:
    assert clients.stdin is not None
    began = cpu_s(pid)
    clients.stdin.write("go\n")
    clients.stdin.flush()
    read = json.loads(_ask(clients, "{"))
    spent = cpu_s(pid) - began
    rate = read["tokens"] / read["seconds"]
    return spent / read["tokens"] * 1e6, rate, read["delay_p50_ms"], read["delay_p99_ms"]


def _ask(child: subprocess.Popen[str], beginning: str) -> str:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line.startswith(beginning):
        raise RuntimeError(f"a process said {line!r} and ended: {child.poll()}")
    return line


CASES = (
    Setup("sidecar", TEXT, 500, 0.05),
    Setup("sidecar", CHAT, 500, 0.05),
    Setup("asgi", TEXT, 500, 0.05),
    Setup("transport", TEXT, 500, 0.05),
    Setup("sidecar", TEXT, 500, 0.02),
    Setup("asgi", TEXT, 500, 0.02),
    Setup("transport", TEXT, 500, 0.02),
    Setup("sidecar", TEXT, 1000, 0.05),
    Setup("sidecar", TEXT, 1000, 0.02),
    Setup("transport", TEXT, 1000, 0.02),
)
NAMES = {
    "sidecar": "sidecar",
    "asgi": "uvicorn alone, an ASGI application",
    "transport": "uvloop alone, bytes to sockets",
}
NEW_LINE = "\n"  # no backslash may be in an f-string's braces before Python 3.12
TARGETS = """Targets: 15 µs a token, 1,000 streams, 50,000 tokens a second on one core,
a p99 of 5 ms at half of that, 20 KiB a stream, and a scrape off the loop."""


def scrape_stalls() -> dict[str, float]:
    """Ask how long the loop stands still for a scrape."""
    with process("-m", "edge_load.scrape") as child:
        stalls: dict[str, float] = json.loads(_ask(child, "{"))
        return stalls


def row_of(setup: Setup, rounds: list[Measured]) -> str:
    """Write a line of the table: medians, with the range of the processor time."""
    if not rounds:
        return f"| {NAMES[setup.server]} | {setup.streams} | not measured: too busy |"
    cpu = sorted(one.cpu_us for one in rounds)
    cells = (
        f"{NAMES[setup.server]}{', chat' if setup.path == CHAT else ''}",
        f"{setup.streams}",
        f"{1 / setup.interval_s:.0f}" if setup.interval_s else "as read",
        f"{statistics.median(cpu):.1f} ({cpu[0]:.1f} to {cpu[-1]:.1f})",
        f"{1e6 / statistics.median(cpu):,.0f}",
        *(
            f"{statistics.median(getattr(one, name) for one in rounds):,.{digits}f}"
            for name, digits in (
                ("tokens_per_s", 0),
                ("delay_p50_ms", 1),
                ("delay_p99_ms", 1),
                ("kib_per_stream", 1),
            )
        ),
    )
    return "| " + " | ".join(cells) + " |"


def added_delay(measured: dict[Setup, list[Measured]]) -> str:
    """Say what the sidecar adds to the delay of bytes that go to sockets, at 25,000 a second."""
    sidecar, floor = (
        [one.delay_p99_ms for one in measured[Setup(server, TEXT, 500, 0.02)]]
        for server in ("sidecar", "transport")
    )
    if not sidecar or not floor:
        return "What the sidecar adds to the delay was not measured: too busy."
    both = statistics.median(sidecar), statistics.median(floor)
    return (
        f"All streams have their token in the same step, so the last one waits for the others. At "
        f"500 streams and 50 tokens a second each the p99 is {both[0]:.1f} ms, that of bytes to "
        f"sockets {both[1]:.1f} ms: the sidecar adds {both[0] - both[1]:.1f} ms."
    )


def report(
    rows: list[str], added: str, stalls: dict[str, float], loads: list[float], rounds: int
) -> str:
    """Write the page."""
    return f"""# What the edge costs

`python benchmarks/edge.py`, {os.cpu_count()} cores, Python {platform.python_version()}; \
load average {min(loads):.1f} to {max(loads):.1f} meanwhile; engine, clients and server on these \
cores.
Medians of {rounds} interleaved rounds of new processes; processor time with its range.
Delays are from the engine's step to the client's read: with a load above the number of cores they \
are the machine's queue.

{TARGETS}

| Server | streams | tokens a second each | µs of processor a token | so a core could, a second | \
tokens a second, measured | delay p50 ms | p99 ms | KiB a stream |
|---|---|---|---|---|---|---|---|---|
{NEW_LINE.join(rows)}

{added}

A scrape, median: written in a thread it takes {stalls["thread_ms"]:.1f} ms, and the loop stands \
still for {stalls["thread_stall_ms"]:.1f} ms at most; on the loop, as before, \
{stalls["loop_ms"]:.1f} ms and {stalls["loop_stall_ms"]:.1f} ms; without a scrape it stands still \
for {stalls["nothing_stall_ms"]:.1f} ms.
"""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--quick", action="store_true", help="one short round, nothing written")
    options = parser.parse_args()
    rounds = 1 if options.quick else options.rounds
    measured: dict[Setup, list[Measured]] = {setup: [] for setup in CASES}
    loads = []
    for _ in range(rounds):
        for setup, results in measured.items():
            try:
                results.append(measure(setup, seconds=options.seconds, repeats=1))
            except RuntimeError as error:  # on a machine that is too busy: the row says so
                print(setup, error, flush=True)
                continue
            loads.append(os.getloadavg()[0])
            print(setup, results[-1], f"load {loads[-1]:.1f}", flush=True)
    rows = [row_of(setup, results) for setup, results in measured.items()]
    page = report(rows, added_delay(measured), scrape_stalls(), loads, rounds)
    print(page)
    if not options.quick:
        RESULT.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
