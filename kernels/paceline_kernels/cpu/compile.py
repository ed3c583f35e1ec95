"""Compiles the C source with the compiler that is there, for the processor that is there.

It takes about a second and happens once in a process. The result is not kept: a library that was
made for another processor, or by somebody else, is never loaded.
"""

import os
import shlex
import subprocess
import tempfile
from ctypes import CDLL
from pathlib import Path

SOURCES = sorted(Path(__file__).parent.glob("*.c"))
TIMEOUT_S = 60.0

# No flag may let the compiler forget that a number can be NaN: the sampler has to see it.
_FLAGS = (
    "-O3 -march=native -fno-math-errno -fno-trapping-math -ffp-contract=fast "
    "-std=gnu11 -fopenmp -fPIC -shared"
)


class CompileError(Exception):
    """There is no compiler, or it failed, or what it made cannot be loaded: the text says which."""


def compile_native(compiler: str | None = None) -> CDLL:
    """Compile and load the ops; `compiler` is a command, by default that of $CC, else `cc`.

    Raises CompileError.
    """
    command = shlex.split(compiler or os.environ.get("CC", "cc"))
    try:
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            library = Path(folder, "native.so")
            subprocess.run(  # noqa: S603 - the operator's own compiler on our own source
                [*command, *shlex.split(_FLAGS), "-o", str(library), *map(str, SOURCES), "-lm"],
                check=True,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
            return CDLL(str(library))
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or f"exit status {error.returncode}").strip().splitlines()[0]
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    raise CompileError(f"{' '.join(command)}: {reason}")
