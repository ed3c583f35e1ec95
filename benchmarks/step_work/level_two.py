"""Which reads of a step the L2 cache can answer, by a simple rule.

A tensor that a launch touches is read from the cache where it and all that launches have moved
since it was last touched take no more than half of the cache: weights stream through the rest. What
a launch itself moves before it reads the tensor is not counted, for what is small is read first.
Whatever is written counts: in the end it goes to memory, unless the same place is written again
before that, which no rule here knows. Weights, keys and values are read once a step, and logits
count each way, as they do in what no step can do without.
"""

from collections.abc import Iterator, Sequence

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from paceline_testing.device_record import Launch, bytes_of

_HELD = 0.5
"""Share of the cache that holds what is to be read again."""
_COUNTED = {"k_cache_ptr", "v_cache_ptr", "k_exponents_ptr", "v_exponents_ptr", "logits_ptr"}


def read_from_l2(moved: Sequence[tuple[Launch, int, int]], l2_bytes: int) -> int:
    """Return the bytes that launches in this order read from L2; each has its reads and writes."""
    touched_at: dict[int, int] = {}
    so_far = found = 0
    for launch, read, written in moved:
        sizes = _sizes(launch)
        held = (
            size
            for place, size in sizes.items()
            if place in touched_at and so_far - touched_at[place] + size <= _HELD * l2_bytes
        )
        found += min(read, sum(held))
        so_far += read + written
        touched_at |= dict.fromkeys(sizes, so_far)
    return found


def _sizes(launch: Launch) -> dict[int, int]:
    """Return the bytes of each piece of memory; the launch keeps it from being given to others."""
    sizes: dict[int, int] = {}
    for tensor in _tensors(launch):
        place = StorageWeakRef(tensor.untyped_storage()).cdata
        sizes[place] = max(bytes_of(tensor), sizes.get(place, 0))
    return sizes


def _tensors(launch: Launch) -> Iterator[Tensor]:
    yield from launch.tensors
    for name, each in launch.arguments.items():
        if isinstance(each, Tensor) and name not in _COUNTED:
            yield each
