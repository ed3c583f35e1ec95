"""The deadlines of the requests in the engine, soonest first."""

import heapq

from paceline_engine.core.request import Request, State


class Deadlines:
    """A heap from which nothing is removed before its time: what has finished is skipped then."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []

    @property
    def next_at(self) -> float | None:
        """The soonest deadline, perhaps of a request that has finished."""
        return self._heap[0][0] if self._heap else None

    def add(self, request: Request) -> None:
        """Watch a request, if it has a deadline."""
        if request.deadline_at is not None:
            heapq.heappush(self._heap, (request.deadline_at, request.number, request))

    def pop_passed(self, now: float) -> list[Request]:
        """Take the requests that are late, waiting and running ones."""
        late = []
        while self._heap and self._heap[0][0] <= now:
            request = heapq.heappop(self._heap)[2]
            if request.state is not State.FINISHED:
                late.append(request)
        return late
