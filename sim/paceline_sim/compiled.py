"""Numba's `njit` with the types of the function that it compiles, kept on disk."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from numba import njit
from numba.core import config

from paceline_engine import pacing, scheduling
from paceline_wire import step_cost

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def _kept_in() -> str:
    """Name a folder after all of this package's sources, and of those whose constants it takes.

    Numba makes kept code anew when a function's own file has changed, but not when that of a
    function it calls has, or of a constant that it imports.
    """
    here = Path(__file__).parent
    kept = here / "__pycache__"
    if not os.access(kept if kept.exists() else here, os.W_OK):  # installed by somebody else
        kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline"
    sources = hashlib.sha256()
    taken = (Path(str(package.__file__)).parent for package in (pacing, scheduling))
    paths = [path for folder in (here, *taken) for path in sorted(folder.glob("*.py"))]
    for path in (*paths, Path(step_cost.__file__)):
        sources.update(path.read_bytes())
    return str(kept / f"numba-{sources.hexdigest()[:16]}")


_KEPT_IN = _kept_in()
_CONFIG: Any = config  # its settings are made at import, unseen by type checkers


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Compile to machine code at the first call."""
    before = _CONFIG.CACHE_DIR
    _CONFIG.CACHE_DIR = _KEPT_IN
    try:
        return cast("Callable[Parameters, Result]", njit(cache=True)(function))
    finally:
        _CONFIG.CACHE_DIR = before
