"""A port that nobody listens on, for a process that binds it later.

It lies below the range from which the kernel takes ports for connections, so that none is given
away meanwhile; each worker of pytest has a range of its own.
"""

import itertools
import os
import socket
from typing import Final

_FIRST: Final = 20_000
_EACH: Final = 1_500
_WORKERS: Final = 8
_numbers = itertools.count(os.getpid())


def free_port() -> int:
    """Return one that is free on loopback."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS
    for _ in range(_EACH):
        port = _FIRST + worker * _EACH + next(_numbers) % _EACH
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no port is free")
