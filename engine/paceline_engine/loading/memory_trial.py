"""Measures what full steps and graphs take on a GPU, by a trial over a small KV cache."""

from collections.abc import Callable
from typing import Protocol

from paceline_engine.loading.measured_memory import MeasuredMemory
from paceline_engine.loading.memory_gauge import MemoryGauge


class Trial(Protocol):
    """A model with a small KV cache; it gives its memory back with its last reference."""

    @property
    def cache_bytes(self) -> int:
        """Return what its cache takes."""
        ...

    def run_steps(self) -> None:
        """Run every kernel, and steps that are as wide as any can be."""
        ...

    def graph_bytes(self, gauge: MemoryGauge) -> int:
        """Capture a sample of graphs, and return the bytes that all graphs will keep."""
        ...


def measure_trial(gauge: MemoryGauge, begin: Callable[[], Trial]) -> MeasuredMemory:
    """Measure a trial beside the weights; nothing of it is left after."""
    gauge.settle()
    before = gauge.read()
    trial = begin()
    gauge.settle()  # memory used to choose algorithms is not part of a step
    trial.run_steps()
    after = gauge.read()
    # What is taken from the driver, not what tensors use: between them lies fragmentation.
    taken = after.most_taken_bytes - before.taken_bytes
    gone = before.free_bytes - after.free_bytes
    outside = gone - (after.taken_bytes - before.taken_bytes)
    graph_bytes = trial.graph_bytes(gauge)
    step_bytes = max(0, taken - trial.cache_bytes)
    del trial
    gauge.settle()
    return MeasuredMemory(
        before.total_bytes, before.free_bytes, step_bytes, max(0, outside), graph_bytes
    )
