"""A histogram in plain integers; observing is one bisection."""

from bisect import bisect_left, insort


class Histogram:
    """Counts of values in (edge before, edge], and their sum."""

    __slots__ = ("_base", "_counts", "_edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self._base = edges
        self._edges = list(edges)
        self._counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, once or as often as it was seen."""
        self._counts[bisect_left(self._edges, value)] += times
        self.total += value * times

    def keep_edges(self, extra: tuple[float, ...]) -> None:
        """Make the edges the first ones and `extra`, with no count lost.

        What was counted before a new edge came is counted above it: the new bucket tells the
        truth from now on and never goes down.
        """
        wanted = set(self._base) | set(extra)
        for edge in [edge for edge in self._edges if edge not in wanted]:
            at = self._edges.index(edge)
            self._counts[at + 1] += self._counts[at]
            del self._edges[at], self._counts[at]
        for edge in sorted(wanted.difference(self._edges)):
            self._counts.insert(bisect_left(self._edges, edge), 0)
            insort(self._edges, edge)

    def copy(self) -> "Histogram":
        """Return one of its own with the same counts."""
        copied = Histogram(self._base)
        copied._edges = self._edges.copy()
        copied._counts = self._counts.copy()
        copied.total = self.total
        return copied

    @property
    def count(self) -> int:
        """Values seen."""
        return sum(self._counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them: (upper edge, values at most that), up to +Inf."""
        buckets, below = [], 0
        labels = [repr(float(edge)) for edge in self._edges]
        for label, count in zip([*labels, "+Inf"], self._counts, strict=True):
            below += count
            buckets.append((label, float(below)))
        return buckets
