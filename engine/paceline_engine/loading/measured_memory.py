"""How large the KV cache becomes, from what was measured beside the weights. Pure.

KV cache = free after the weights - reserved share - full step - driver and libraries - graphs
"""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline_engine.errors import DoesNotFit
from paceline_engine.loading.out_of_memory import what_to_lower
from paceline_engine.settings import Settings


@dataclass(frozen=True, slots=True)
class MeasuredMemory:
    """What one GPU has, and what the engine takes of it beside weights and KV cache, in bytes."""

    total_bytes: int
    free_bytes: int
    """After the weights."""
    step_bytes: int
    """Of torch's allocator: tables of rows, a full step's widest moment, a buffer for swaps."""
    outside_bytes: int
    """What the driver, compiled kernels, cuBLAS and NCCL keep of their own."""
    graph_bytes: int = 0
    """What all CUDA graphs keep, by a sample of them."""

    @property
    def left_bytes(self) -> int:
        """Return what a cache may have where nothing is reserved; negative where nothing is."""
        return self.free_bytes - self.step_bytes - self.outside_bytes - self.graph_bytes

    @property
    def sentence(self) -> str:
        """Name every part."""
        return (
            f"{_mib(self.free_bytes)} of {_mib(self.total_bytes)} free after the weights, "
            f"a full step {_mib(self.step_bytes)}, driver and libraries "
            f"{_mib(self.outside_bytes)}, graphs {_mib(self.graph_bytes)}"
        )


def measured_kv_bytes(measured: MeasuredMemory, settings: Settings) -> int:
    """Return the KV cache's bytes; a size that is set is kept, if it fits.

    Raises `DoesNotFit` where nothing is left, or less than what is set.
    """
    if (wanted := settings.kv_cache_bytes) is None:
        reserved = int(measured.total_bytes * (1 - settings.kv_cache_memory_fraction))
        if (left := measured.left_bytes - reserved) > 0:
            return left
        raise DoesNotFit(
            f"Nothing is left for the KV cache beside the {_mib(reserved)} that "
            "PACELINE_ENGINE_KV_CACHE_MEMORY_FRACTION reserves: "
            f"{measured.sentence}. {what_to_lower(settings)}"
        )
    if wanted > measured.left_bytes:
        raise DoesNotFit(
            f"The KV cache is to have {_mib(wanted)} (PACELINE_ENGINE_KV_CACHE_BYTES), but "
            f"{_mib(max(0, measured.left_bytes))} are left: {measured.sentence}. "
            f"{what_to_lower(settings)}"
        )
    return wanted


def bytes_of_graphs(free: Sequence[int], num_graphs: int) -> int:
    """Return what `num_graphs` keep, by the free bytes before a sample and after each of it.

    The first takes the memory that all share, so it is counted once, and the others by their mean.
    """
    if len(free) < 2:  # noqa: PLR2004 - nothing was captured
        return 0
    before, first, last, num_others = free[0], free[1], free[-1], len(free) - 2
    of_first = max(0, before - first)
    of_others = max(0, first - last)
    # A sample of one says nothing of the others but that none takes more than the first.
    each = -(-of_others // num_others) if num_others else of_first
    return of_first + max(of_others, each * (num_graphs - 1))


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
