"""Who runs: the requests that hold a row, in prefill or in decode."""

from collections.abc import Iterator
from itertools import chain

from paceline_engine.core.request import Request
from paceline_wire.limits import Lane


class Rows:
    """A fixed number of rows; whoever holds one holds KV blocks too."""

    def __init__(self, num_rows: int) -> None:
        self.prefilling: dict[str, Request] = {}
        self.decoding: dict[str, Request] = {}
        self.free = list(range(num_rows))[::-1]
        self.by_lane: dict[Lane, int] = {"interactive": 0, "batch": 0}

    def __len__(self) -> int:
        """Count the rows held."""
        return len(self.prefilling) + len(self.decoding)

    def __iter__(self) -> Iterator[Request]:
        """Walk the requests that run, decodes first."""
        return chain(self.decoding.values(), self.prefilling.values())

    def of_lane(self, lane: Lane) -> list[Request]:
        """List the running requests of one lane."""
        return [request for request in self if request.lane == lane]

    def enter(self, request: Request) -> None:
        """Give a row to a request whose blocks have been taken."""
        request.enter(self.free.pop())
        self.by_lane[request.lane] += 1
        self.prefilling[request.id] = request

    def begin_decode(self, request: Request) -> None:
        """Note that a prompt is done."""
        self.decoding[request.id] = self.prefilling.pop(request.id)

    def resume_prefill(self, request: Request) -> None:
        """Note that nothing came of the step that would have completed a prompt."""
        self.prefilling[request.id] = self.decoding.pop(request.id)

    def leave(self, request: Request) -> None:
        """Take the row back. The caller has seen to the blocks, and says what becomes of it."""
        assert request.row is not None  # noqa: S101 - every running request holds one
        self.free.append(request.row)
        request.row = None
        self.by_lane[request.lane] -= 1
        (self.decoding if request.id in self.decoding else self.prefilling).pop(request.id)
