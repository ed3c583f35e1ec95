"""The requests that wait, lane by lane.

Within a lane the first come is the first served, and no request overtakes.
"""

from collections import OrderedDict
from collections.abc import Iterator

from paceline_engine.core.request import Request
from paceline_wire.limits import Lane

LANES: tuple[Lane, ...] = ("interactive", "batch")


class WaitingLane:
    """Requests of one lane in their order; a request in the middle leaves in O(1)."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, Request] = OrderedDict()
        self.num_tokens = 0
        """Tokens to be computed before each has its next output token; prefix hits not deducted."""

    def __len__(self) -> int:
        """Count the requests."""
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Walk the requests, next one first."""
        return iter(self._requests.values())

    @property
    def head(self) -> Request | None:
        """The request that is next."""
        return next(iter(self._requests.values()), None)

    def append(self, request: Request) -> None:
        """Queue a new request."""
        self._requests[request.id] = request
        self.num_tokens += len(request.token_ids)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request before all others."""
        self.append(request)
        self._requests.move_to_end(request.id, last=False)

    def remove(self, request: Request) -> None:
        """Take a request out: it is admitted, aborted or too late."""
        del self._requests[request.id]
        self.num_tokens -= len(request.token_ids)
