"""How long a newcomer waits: from a clone to the first token, and to a report of own traffic.

Clones this repository, installs it as the README says, without pip's cache, and serves the
quickstart. Needs the network, 7 GB of disk and about five minutes.

    PYTHONPATH=benchmarks:tests python benchmarks/first_minutes.py
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import APIConnectionError, APIStatusError, OpenAI

from paceline_cli.traffic.calibration import machine
from paceline_testing.free_port import free_port

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "cpu"
READY_S = 300.0
TRAFFIC = ("--rate", "2", "--requests", "100", "--ttft", "2s", "--itl", "300ms")


def main() -> None:
    """Walk the path, print each part's seconds, and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = walk(Path(folder) / "paceline")
    text = page(seconds)
    print(text)
    (given.results / "first-minutes.md").write_text(text)
    (given.results / "first-minutes.json").write_text(json.dumps(seconds, indent=1) + "\n")


def walk(clone: Path) -> dict[str, float]:
    """Do what the README says; the seconds that each part takes, in order."""
    marks = [time.perf_counter()]
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    marks.append(time.perf_counter())
    # What the shell that measures has set must not help the newcomer.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = {**own, "PIP_NO_CACHE_DIR": "1"}
    subprocess.run(["make", "install"], cwd=clone, env=environment, check=True)
    marks.append(time.perf_counter())
    port = free_port()
    with served(clone, port, environment):
        url = f"http://127.0.0.1:{port}"
        first_token(url)
        marks.append(time.perf_counter())
        command = [".venv/bin/paceline", "bench", "run", "--url", url, *TRAFFIC]
        subprocess.run(command, cwd=clone, env=environment, check=True)
        marks.append(time.perf_counter())
        assert (clone / "out" / "bench" / "run.html").exists()
    names = ("clone", "install", "start", "measure")
    return {
        name: end - begin for name, begin, end in zip(names, marks[:-1], marks[1:], strict=True)
    }


@contextmanager
def served(clone: Path, port: int, environment: dict[str, str]) -> Iterator[None]:
    """Serve the quickstart until the end of the block."""
    command = [".venv/bin/paceline", "up", "-f", "examples/quickstart.yaml", "--no-page"]
    up = subprocess.Popen(
        [*command, "--port", str(port)], cwd=clone, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        up.terminate()
        up.wait(timeout=60)


def first_token(url: str) -> None:
    """Ask until the service answers, and wait for the answer's first piece."""
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    deadline = time.monotonic() + READY_S
    while True:
        try:
            stream = client.chat.completions.create(
                model="quickstart",
                messages=[{"role": "user", "content": "What is the capital of France?"}],
                stream=True,
            )
            next(iter(stream))
        except (APIConnectionError, APIStatusError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def page(seconds: dict[str, float]) -> str:
    """Write the table."""
    to_token = seconds["clone"] + seconds["install"] + seconds["start"]
    rows = (
        ("`git clone` (from this disk)", seconds["clone"]),
        ("`make install`, without pip's cache", seconds["install"]),
        ("`paceline up -f examples/quickstart.yaml` to the first token", seconds["start"]),
        ("**clone to first token**", to_token),
        (f"`paceline bench run --url URL {' '.join(TRAFFIC)}`", seconds["measure"]),
        ("**clone to a report of own traffic**", to_token + seconds["measure"]),
    )
    return (
        f"# The first minutes\n\n{machine()}; no GPU.\n\n| | seconds |\n|---|---|\n"
        + "".join(f"| {name} | {spent:.0f} |\n" for name, spent in rows)
        + "\nMade by `PYTHONPATH=benchmarks:tests python benchmarks/first_minutes.py`.\n"
    )


if __name__ == "__main__":
    main()
