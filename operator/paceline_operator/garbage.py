"""The threshold of Python's cyclic garbage collector in a process that tunes."""

import gc
from typing import Final

_OBJECTS: Final = 10_000
"""A decision leaves hardly any reference cycles. With 300 pods and Python's default of
700, collecting took 0.09 of 1.4 ms a decision; with this threshold 0.02 ms."""


def look_seldom() -> None:
    """Run the collector only once per so many objects allocated and not freed."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
