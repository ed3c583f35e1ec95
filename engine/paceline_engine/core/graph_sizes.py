"""Sizes of the CUDA graphs that are captured at start, and the one a step is padded to. Pure.

Steps of decodes alone, in rows: dense where a step is short and padding shows, sparser where one
more row is a small share:

    1 2 3 4 6 8, then by 8 to 128, by 16 to 256, by 32 to 512, by 64 beyond; the capacity itself

Mixed steps, in tokens, up to where the device takes long enough for the host to launch every op
meanwhile; four for each power of two:

    8 16 24 32 40 48 56 64 80 96 112 128 160 ... 896 1024; the budget's capacity where it is less
"""

import itertools
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import takewhile

MOST_CHUNKS = 64
"""Prompts and drafts in a mixed step, at most: a graph launches attention for so many."""
_FEW = (1, 2, 3, 4, 6, 8)
_RANGES = ((8, 128), (16, 256), (32, 512))
"""By how much sizes grow, and up to where."""
_STRIDE_BEYOND = 64
_MIXED = (8, 16, 24, *(n << shift for shift in range(3, 8) for n in range(4, 8)), 1024)


def decode_sizes(max_batch_size: int) -> tuple[int, ...]:
    """Return sizes in [1, max_batch_size], ascending; `max_batch_size` is always the last.

    Raises `ValueError` where there is no row at all.
    """
    if max_batch_size < 1:
        raise ValueError(f"max_batch_size must be at least 1, got {max_batch_size}")
    return (*takewhile(lambda size: size < max_batch_size, _ladder()), max_batch_size)


def mixed_sizes(max_tokens: int) -> tuple[int, ...]:
    """Return numbers of tokens up to `max_tokens`, the most of a step, ascending.

    Raises `ValueError` where there is no token at all.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    largest = min(max_tokens, _MIXED[-1])
    return (*takewhile(lambda size: size < largest, _MIXED), largest)


def powers_of_two(most: int) -> tuple[int, ...]:
    """Return the powers of two below `most`, ascending, and behind them `most` itself."""
    return (*(1 << power for power in range((most - 1).bit_length())), most)


def padded_size(sizes: Sequence[int], count: int) -> int:
    """Return the least of `sizes`, ascending, that holds `count` rows or tokens.

    Raises `ValueError` where none does: nothing was captured for such a step.
    """
    if not 1 <= count <= sizes[-1]:
        raise ValueError(f"count must be in [1, {sizes[-1]}], got {count}")
    return sizes[bisect_left(sizes, count)]


def _ladder() -> Iterator[int]:
    yield from _FEW
    last = _FEW[-1]
    for stride, end in _RANGES:
        yield from range(last + stride, end + 1, stride)
        last = end
    yield from itertools.count(last + _STRIDE_BEYOND, _STRIDE_BEYOND)
