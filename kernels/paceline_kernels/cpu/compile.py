"""Compiles the C source, each file in a process of its own, into one library.

The library is linked with no OpenMP of its own (`openmp.py`), but clang's code calls another
OpenMP than torch's, and brings it.
"""

import functools
import hashlib
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent
SOURCES: Final = sorted(_FOLDER.glob("*.c"), key=lambda source: -source.stat().st_size)
"""The largest first: what compiles longest must not begin last."""
TIMEOUT_S: Final = 60.0
NATIVE: Final = ("-march=native",)
"""For the CPU at hand, all that it can do."""

# No flag may let the compiler forget that a number can be NaN: the sampler has to see it.
# -O2 compiles native.c in half the time, but its gates then take nine times as long, and with the
# vectoriser's dynamic cost model the attention of decodes still takes 1.25 times as long.
_FLAGS: Final = shlex.split(
    "-O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast -std=gnu11 -fopenmp -fPIC"
)


class CompileError(Exception):
    """There is no compiler, or it failed: the text says which."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that is there."""

    command: tuple[str, ...]
    version: str
    """All that it says of itself."""

    @property
    def is_clang(self) -> bool:
        """Tell clang, in any of its disguises, from gcc."""
        return "clang" in self.version

    def compile(self, out: Path, options: tuple[str, ...] = NATIVE) -> None:
        """Compile the ops into the library `out`, beside which objects are left.

        Raises CompileError.
        """
        objects = [out.with_name(f"{source.stem}.o") for source in SOURCES]

        def compile_one(source: Path, to: Path) -> None:
            self._run(*_FLAGS, *options, "-c", "-o", str(to), str(source))

        with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
            list(pool.map(compile_one, SOURCES, objects))
        openmp = ["-fopenmp"] if self.is_clang else []
        self._run("-shared", *openmp, "-o", str(out), *map(str, objects), "-lm")

    def _run(self, *arguments: str) -> None:
        _run(self.command, *arguments)


def find_compiler(command: str = "") -> Compiler:
    """Find the compiler that `command` names, by default that of $CC, else `cc`.

    Raises CompileError where it is not there or does not start.
    """
    words = tuple(shlex.split(command or os.environ.get("CC") or "cc"))
    return Compiler(words, _run(words, "--version"))


@functools.cache
def source_digest() -> str:
    """Digest what a library is made of, beside compiler and options: the source and the flags."""
    digest = hashlib.sha256("\0".join(_FLAGS).encode())
    for path in sorted([*SOURCES, *_FOLDER.glob("*.h")]):
        content = path.read_bytes()
        digest.update(f"\0{path.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _run(command: tuple[str, ...], *arguments: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - the operator's own compiler on our own source
            [*command, *arguments],
            check=True,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or f"exit status {error.returncode}").strip().splitlines()
        reason = next((line for line in said if "error" in line), said[0])
    except FileNotFoundError:
        reason = "there is no such command"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    else:
        return done.stdout
    raise CompileError(f"{shlex.join(command)}: {reason}")
