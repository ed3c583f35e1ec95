"""The server of llama.cpp as a peer: a process of its own, asked over HTTP on this machine.

python benchmarks/peers/serve_llama_cpp.py SETUP

`PEER_PROGRAM` names its program. It answers token by token, so tokens are timed as they are
received; one that ends within a character of several bytes comes with the token that completes it.
"""

import atexit
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

from peers.closed_loop import serve
from peers.gguf_types import described
from peers.setup import Identity, Setup
from serving_workload import Run, Timeline, Workload

_HOST = "127.0.0.1"
_TOKENS_OF_A_REQUEST = 1024
"""Prompt and output; more than any request of the workload has."""


def start(setup: Setup) -> tuple[Identity, Run]:
    """Start the server and wait until it serves; its settings are its own but for the sizes."""
    program, port = os.environ["PEER_PROGRAM"], _free_port()
    words = {
        "--model": setup.model,
        "--host": _HOST,
        "--port": port,
        "--parallel": setup.concurrency,
        "--ctx-size": setup.concurrency * _TOKENS_OF_A_REQUEST,
        "--threads": len(os.sched_getaffinity(0)),
        "--cache-ram": 0,  # as with the others: no prompt is looked for among earlier ones
    }
    server = subprocess.Popen(
        [program, *(str(word) for pair in words.items() for word in pair)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    atexit.register(server.terminate)
    _wait(server, port)
    return Identity(_version(program), described(Path(setup.model))), partial(run, port)


def run(port: int, prompts: list[list[int]], workload: Workload) -> list[Timeline]:
    """Send every prompt, `workload.concurrency` at a time, each stream read by a thread."""
    numbers = count()
    lines: dict[int, Timeline] = {}

    def read_streams() -> None:
        while (number := next(numbers)) < len(prompts):
            lines[number] = _timeline(port, prompts[number], workload.output_tokens)

    threads = [threading.Thread(target=read_streams) for _ in range(workload.concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [lines[number] for number in range(len(prompts))]


def _timeline(port: int, prompt: list[int], output_tokens: int) -> Timeline:
    """Send one request, on a connection of its own: the server closes those that it keeps."""
    body = {
        "prompt": prompt,
        "n_predict": output_tokens,
        "temperature": 0.0,
        "samplers": ["temperature"],  # nothing but the likeliest token is looked for
        "ignore_eos": True,
        "cache_prompt": False,
        "stream": True,
    }
    sent = time.perf_counter()
    tokens: list[float] = []
    with closing(http.client.HTTPConnection(_HOST, port)) as connection:
        connection.request("POST", "/completion", json.dumps(body))
        for total in _totals(connection.getresponse()):
            tokens += [time.perf_counter()] * (total - len(tokens))
    return Timeline(sent, tuple(tokens))


def _totals(response: http.client.HTTPResponse) -> Iterator[int]:
    """Yield how many tokens a stream's answer has, event by event, until it ends."""
    for line in response:
        if line.startswith(b"data: "):
            yield int(json.loads(line.removeprefix(b"data: "))["tokens_predicted"])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])


def _wait(server: subprocess.Popen[bytes], port: int) -> None:
    """Return when the server says that it is well; end this process if it has ended."""
    while server.poll() is None:
        try:
            with closing(http.client.HTTPConnection(_HOST, port)) as connection:
                connection.request("GET", "/health")
                if connection.getresponse().status == http.HTTPStatus.OK:
                    return
        except ConnectionRefusedError:
            pass
        time.sleep(0.1)
    sys.exit(f"the server has ended: exit status {server.returncode}")


def _version(program: str) -> str:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return next(line for line in (told.stdout + told.stderr).splitlines() if "version" in line)


if __name__ == "__main__":
    serve(start)
