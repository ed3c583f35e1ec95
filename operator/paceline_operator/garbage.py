"""How often a process that tunes looks for garbage that refers to itself."""

import gc
from typing import Final

_OBJECTS: Final = 10_000
"""Hardly anything that a decision leaves behind refers to itself. With 300 pods and Python's own
700, looking took 0.09 ms of 1.4 a decision; with this 0.02 ms."""


def look_seldom() -> None:
    """Look once in so many objects that have been made and not been freed."""
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
