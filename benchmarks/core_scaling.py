"""How a step's time falls with cores: a model from two measured points and a machine's memory.

A step reads its weights, keys and values, and does the rest. A core reads only so fast, and all
together no faster than the memory gives; of the rest one core and two give the share that no second
core shortens (Amdahl):

    read(cores) = bytes / min(cores * bandwidth of one core, bandwidth of the memory)
    rest(cores) = rest(1) * (serial + (1 - serial) / cores)
    t(cores)    = read(cores) + rest(cores)

It is a model: nothing here knows a machine's caches, clocks under load, or NUMA.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Point:
    """One kind of step on so many cores."""

    seconds: float
    gbps: float
    """Bandwidth of memory that these cores reach, measured in the same run."""


@dataclass(frozen=True)
class Scaling:
    """One kind of step on one and on two cores."""

    one: Point
    two: Point
    num_bytes: int
    """What the step must read from memory: weights, keys and values."""
    tokens: int
    """Tokens that the step yields, or of a prompt that it reads."""

    @property
    def serial(self) -> float:
        """The share of the rest on one core that a second core does not shorten, 0 to 1."""
        one_s, two_s = self._rest_s(self.one), self._rest_s(self.two)
        return min(1.0, max(0.0, 2 * two_s / one_s - 1)) if one_s > 0 else 0.0

    def tokens_per_s(self, cores: int, gbps: float) -> float:
        """Predict for so many such cores beside a memory of so many gigabytes per second."""
        read_s = self.num_bytes / (min(cores * self.one.gbps, gbps) * 1e9)
        rest_s = self._rest_s(self.one) * (self.serial + (1 - self.serial) / cores)
        return self.tokens / (read_s + rest_s)

    def is_bound_by_memory(self, cores: int, gbps: float) -> bool:
        """Tell whether the memory gives less than the cores could read."""
        return cores * self.one.gbps > gbps

    def _rest_s(self, point: Point) -> float:
        return max(0.0, point.seconds - self.num_bytes / (point.gbps * 1e9))
