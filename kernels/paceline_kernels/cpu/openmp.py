"""One OpenMP for torch's ops and ours: two pools of threads would spin against each other.

Wheels of torch bring an OpenMP library of their own, under a name of their own in some. Our
library is therefore linked with none, and finds its functions where torch's are.
"""

import ctypes
from ctypes import CDLL, RTLD_GLOBAL
from pathlib import Path
from typing import Final

import torch

_SYSTEMS: Final = "libgomp.so.1"


class _Found(ctypes.Structure):
    """`Dl_info` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def share_openmp() -> None:
    """Let libraries that are loaded from now on call torch's OpenMP, or the system's.

    Raises OSError where there is neither.
    """
    CDLL(torchs_openmp() or _SYSTEMS, mode=RTLD_GLOBAL)


def torchs_openmp() -> str | None:
    """Return the file of the OpenMP library that torch calls; None where it calls none."""
    try:
        torchs = CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        address = ctypes.cast(torchs.omp_get_max_threads, ctypes.c_void_p)
        found = _Found()
        is_found = CDLL(None).dladdr(address, ctypes.byref(found))
    except (OSError, AttributeError):
        return None
    return found.file.decode() if is_found and found.file else None
