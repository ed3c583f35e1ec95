"""The requests that wait, lane by lane, and whose turn it is.

Within a lane the first come is the first served, and no request overtakes. Between two lanes
the one that has been served fewer prefill tokens, measured against its share, goes next. A lane
whose first request does not fit (its prompt needs blocks that are held) lets the other lane pass,
but not forever: after `MAX_OVERTAKEN` admissions the other waits until that request is in.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from paceline_engine.limits import Lane, Limits
from paceline_engine.request import Request

LANES: tuple[Lane, ...] = ("interactive", "batch")
MAX_OVERTAKEN = 32
MIN_SHARE = 0.01
"""A share below it counts as this much, or a lane with share 0 would starve."""


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


class Turns:
    """Shares the prefill tokens of the steps between the lanes that want some."""

    def __init__(self) -> None:
        self._served: dict[Lane, float] = dict.fromkeys(LANES, 0.0)
        self._active: set[Lane] = set()
        self._overtaken: dict[Lane, int] = dict.fromkeys(LANES, 0)

    def begin(self, wanting: Iterable[Lane]) -> None:
        """Start a step. A lane that wanted nothing until now has saved up no credit."""
        wanting = set(wanting)
        busy = [self._served[lane] for lane in self._active & wanting]
        for lane in wanting - self._active:
            self._served[lane] = max([self._served[lane], *busy])
        self._active = wanting

    def next(self, lanes: Iterable[Lane]) -> Lane:
        """Pick the lane that is furthest below its share."""
        return min(lanes, key=self._served.__getitem__)

    def charge(self, lane: Lane, tokens: int, limits: Limits) -> None:
        """Count prefill tokens given to a lane."""
        share = limits.interactive_share if lane == "interactive" else limits.batch_share
        self._served[lane] += tokens / max(share, MIN_SHARE)

    def admitted(self, lane: Lane, blocked: Iterable[Lane]) -> None:
        """Count that a request of `lane` went past the first ones of the `blocked` lanes."""
        self._overtaken[lane] = 0
        for other in blocked:
            self._overtaken[other] += 1

    def may_admit(self, lane: Lane, waiting: Mapping[Lane, WaitingLane]) -> bool:
        """Tell whether no other lane has been overtaken too often."""
        return not any(
            self._overtaken[other] >= MAX_OVERTAKEN and len(waiting[other]) > 0
            for other in LANES
            if other != lane
        )
