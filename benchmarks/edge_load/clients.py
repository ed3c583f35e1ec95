"""Streaming clients in one process, as cheap as Python can read sockets.

`python -m edge_load.clients BOARD PORT PATH STREAMS SECONDS` opens streams, says `ready`, measures
from the line `go` on its input, and prints what it read as one line of JSON. It reads before that
line as well: what waited in a socket would count as slow, and as tokens that cost nothing.
"""

import json
import re
import selectors
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from edge_load.board import Board

_WORD = re.compile(rb' (\d{4})"')
_OPENED_AT_ONCE = 50
_PATIENCE_S = 50.0
"""A request has a minute by the sidecar's own default."""
_SAMPLED = 4
"""Of so many streams one's tokens are all timed."""


@dataclass(frozen=True, slots=True)
class Read:
    """What the clients read while it was measured."""

    tokens: int
    seconds: float
    delay_p50_ms: float
    delay_p99_ms: float
    delay_max_ms: float


class Clients:
    """Streams over sockets that never block."""

    def __init__(self, board: Board, port: int, path: str) -> None:
        self._board = board
        self._address = ("127.0.0.1", port)
        self._request = _request(path)
        self._selector = selectors.DefaultSelector()
        self._tokens = 0
        self._delays: list[float] = []
        self._num_heard = 0

    def open(self, num_streams: int) -> None:
        """Open the streams, few at a time, until each has a token."""
        opened = 0
        until = time.monotonic() + _PATIENCE_S
        while self._num_heard < num_streams:
            while opened < num_streams and opened - self._num_heard < _OPENED_AT_ONCE:
                stream = socket.create_connection(self._address)
                stream.setblocking(False)
                stream.sendall(self._request)
                self._selector.register(stream, selectors.EVENT_READ, [opened, 0])
                opened += 1
            self._read(0.05)
            if time.monotonic() > until:
                raise TimeoutError(f"{self._num_heard} of {num_streams} streams began")

    def measure(self, seconds: float) -> Read:
        """Read for so long."""
        began = time.monotonic()
        before = self._tokens
        self._delays.clear()
        while time.monotonic() < began + seconds:
            self._read(0.05)
        delays = sorted(self._delays) or [0.0]
        return Read(
            tokens=self._tokens - before,
            seconds=time.monotonic() - began,
            delay_p50_ms=delays[len(delays) // 2] * 1e3,
            delay_p99_ms=delays[int(len(delays) * 0.99)] * 1e3,
            delay_max_ms=delays[-1] * 1e3,
        )

    def wait_for(self, told: TextIO) -> str:
        """Read until there is a line in `told`, and return it."""
        with selectors.DefaultSelector() as lines:
            lines.register(told, selectors.EVENT_READ)
            while not lines.select(0):
                self._read(0.005)
        return told.readline().strip()

    def _read(self, wait_s: float) -> None:
        for key, _ in self._selector.select(wait_s):
            stream, state = key.fileobj, key.data
            assert isinstance(stream, socket.socket)
            data = stream.recv(1 << 16)
            now = time.monotonic()
            if not data:
                raise ConnectionError("a stream ended")
            words = data.count(b'"finish_reason":null')
            self._tokens += words
            if state[1] == 0 and not data.startswith(b"HTTP/1.1 200"):
                raise ConnectionError(data[:300])
            self._num_heard += words > 0 and state[1] < 2
            state[1] = 2 if words or state[1] == 2 else 1
            if state[0] % _SAMPLED == 0:
                times = map(self._board.time_of, map(int, _WORD.findall(data)))
                self._delays.extend(now - at for at in times)
        self._board.received = self._tokens


def _request(path: str) -> bytes:
    asked: dict[str, object] = {"prompt": "Hi"}
    if "chat" in path:
        asked = {"messages": [{"role": "user", "content": "Hi"}]}
    body = json.dumps({"model": "instant", "max_tokens": 900_000, "stream": True, **asked}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: edge\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def main() -> None:
    """Open, measure, tell."""
    board, port, path, streams, seconds = sys.argv[1:]
    clients = Clients(Board(Path(board)), int(port), path)
    clients.open(int(streams))
    print("ready", flush=True)
    while clients.wait_for(sys.stdin) == "go":
        read = clients.measure(float(seconds))
        print(json.dumps({name: getattr(read, name) for name in Read.__slots__}), flush=True)


if __name__ == "__main__":
    main()
