"""How a step's time falls with cores: a model from two measured points and a machine's memory.

One core and two give the share of the work that no second core shortens (Amdahl); the memory's
bandwidth is a floor that no core lifts:

    t(cores) = max(t1 * (serial + (1 - serial) / cores), bytes / bandwidth)

It is a model: nothing here knows a machine's caches, clocks under load, or NUMA.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scaling:
    """One kind of step on one and on two cores."""

    one_s: float
    """Seconds of the step on one core."""
    two_s: float
    num_bytes: int
    """What the step must read from memory: weights, keys and values."""
    tokens: int
    """Tokens that the step yields, or of a prompt that it reads."""

    @property
    def serial(self) -> float:
        """The share of the time on one core that a second core does not shorten, 0 to 1."""
        return min(1.0, max(0.0, 2 * self.two_s / self.one_s - 1))

    def tokens_per_s(self, cores: int, gbps: float) -> float:
        """Predict for so many cores beside a memory of so many gigabytes per second."""
        by_cores_s = self.one_s * (self.serial + (1 - self.serial) / cores)
        by_memory_s = self.num_bytes / (gbps * 1e9)
        return self.tokens / max(by_cores_s, by_memory_s)

    def is_bound_by_memory(self, cores: int, gbps: float) -> bool:
        """Tell whether more cores would bring nothing."""
        by_cores_s = self.one_s * (self.serial + (1 - self.serial) / cores)
        return self.num_bytes / (gbps * 1e9) > by_cores_s
