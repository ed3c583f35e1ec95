"""Finds compiled ops: a cached build for this CPU, a new one, one that the image ships, or none.

Settings are read when the ops are first asked for:

- `PACELINE_NATIVE_CACHE_DIR`: where builds for this CPU are kept, by default
  `$XDG_CACHE_HOME/paceline/native` or `~/.cache/paceline/native`; empty keeps none.
- `PACELINE_NATIVE_DIR`: where an image has its builds by level, `/opt/paceline/native` by default.
- `CC`: the C compiler, `cc` by default.
"""

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from ctypes import CDLL
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

from paceline_kernels.cpu.compile import (
    NATIVE,
    CompileError,
    Compiler,
    find_compiler,
    source_digest,
)
from paceline_kernels.cpu.cpu_features import Cpu, this_cpu
from paceline_kernels.cpu.levels import LEVELS, Level, decisive_features
from paceline_kernels.cpu.openmp import share_openmp
from paceline_kernels.cpu.stored import SUFFIX, LibraryError, load_made, load_stored, store
from paceline_kernels.kept_files import claimed

_SHIPPED: Final = Path("/opt/paceline/native")
_DIGITS: Final = 16

_log = logging.getLogger(__name__)

Origin = Literal["cached", "compiled", "shipped", "torch"]
"""Compiled now or earlier for this very CPU, part of the image, or torch's ops in their place."""


@dataclass(frozen=True, slots=True)
class OpLibrary:
    """Which ops a CPU runs on, and how they came about."""

    origin: Origin
    level: str
    """`native`, or the level of a shipped build; empty with torch's ops."""
    features: tuple[str, ...]
    """What the ops use of the CPU, in the names of /proc/cpuinfo, the strongest first."""
    load_s: float
    """Seconds that it took to find, compile and load them."""
    why: str = ""
    """Why there is nothing faster, as a sentence without a full stop; empty with `native`."""

    def __str__(self) -> str:
        """Say it in one line, for a log."""
        uses = f" ({', '.join(self.features)})" if self.features else ""
        said = {
            "cached": f"compiled for this CPU{uses}, from the cache",
            "compiled": f"compiled for this CPU{uses}",
            "shipped": f"the image's for {self.level}{uses}",
            "torch": "torch's, which are slower",
        }[self.origin]
        why = f", because {self.why}" if self.why else ""
        return f"ops of the CPU: {said}, loaded in {self.load_s:.2f} s{why}"


class Loaded(NamedTuple):
    """The ops and their description; no library with torch's."""

    description: OpLibrary
    library: CDLL | None


@dataclass(frozen=True, slots=True)
class Places:
    """Where compiled ops may come from."""

    cache: Path | None
    shipped: Path = _SHIPPED
    compiler: str = ""
    """A command; by default that of $CC, else `cc`."""


def places(environment: Mapping[str, str]) -> Places:
    """Read the settings."""
    shipped = Path(environment.get("PACELINE_NATIVE_DIR") or _SHIPPED)
    cache = environment.get("PACELINE_NATIVE_CACHE_DIR")
    if cache is not None:
        return Places(Path(cache) if cache else None, shipped)
    if base := environment.get("XDG_CACHE_HOME"):
        return Places(Path(base, "paceline", "native"), shipped)
    if home := environment.get("HOME"):
        return Places(Path(home, ".cache", "paceline", "native"), shipped)
    return Places(None, shipped)


def load_library(
    where: Places, cpu: Cpu | None = None, clock: Callable[[], float] = time.monotonic
) -> Loaded:
    """Load the best ops that can be had, by default for the CPU at hand; never fails."""
    started_at = clock()
    cpu = cpu or this_cpu()

    def loaded(
        origin: Origin, library: CDLL | None, level: Level | None = None, why: str = ""
    ) -> Loaded:
        features = level.features if level else cpu.features if library else ()
        name = level.name if level else "native" if library else ""
        taken_s = clock() - started_at
        return Loaded(OpLibrary(origin, name, decisive_features(features), taken_s, why), library)

    try:
        share_openmp()
    except OSError as error:
        return loaded("torch", None, why=f"there is no OpenMP: {error}")
    try:
        compiler = find_compiler(where.compiler)
        origin, library = _for_this_cpu(compiler, where.cache, cpu)
        return loaded(origin, library)
    except (CompileError, LibraryError, OSError) as error:
        why = f"nothing could be compiled ({error})"
    for level in LEVELS:
        if level.runs_on(cpu) and (shipped := _shipped(where.shipped, level)):
            return loaded("shipped", shipped, level, why + _shortfall(level))
    return loaded("torch", None, why=f"{why}, and {_unserved(where.shipped, cpu)}")


def shipped_key(level: Level) -> str:
    """Return the key of a level's build of this very source."""
    return f"{level.name}-{source_digest()[:_DIGITS]}"


def _shipped(folder: Path, level: Level) -> CDLL | None:
    try:
        return load_stored(folder, shipped_key(level))
    except FileNotFoundError:
        return None
    except (LibraryError, OSError) as error:
        _log.warning("the build for %s in %s is not used: %s", level.name, folder, error)
        return None


def _for_this_cpu(compiler: Compiler, cache: Path | None, cpu: Cpu) -> tuple[Origin, CDLL]:
    """Load the cached build, or compile it and put it into the cache.

    Raises CompileError, LibraryError, and OSError where there is no room for temporary files.
    """
    key = _native_key(compiler, cpu)
    with ExitStack() as held, tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        kept = _claim(held, cache, cpu)
        if kept and (library := _cached(kept, key)) is not None:
            return "cached", library
        made = Path(folder, "native.so")
        compiler.compile(made, _options(cpu))
        library = load_made(made)
        if kept:
            _keep(kept, key, made)
        return "compiled", library


def _claim(held: ExitStack, cache: Path | None, cpu: Cpu) -> Path | None:
    """Hold the cache's folder; None, and a line in the log, where nothing can be kept."""
    try:
        if cache is None:
            reason = "there is no folder for it"
        elif not cpu.features:
            reason = "the system does not tell what the CPU can do"
        else:
            held.enter_context(claimed(cache, SUFFIX))
            return cache
    except (LibraryError, OSError) as error:
        reason = str(error)
    _log.info("what is compiled for this CPU is not kept: %s", reason)
    return None


def _cached(folder: Path, key: str) -> CDLL | None:
    try:
        return load_stored(folder, key)
    except (LibraryError, OSError) as error:
        _log.warning("the cached ops are compiled anew: %s", error)
        return None


def _keep(folder: Path, key: str, made: Path) -> None:
    try:
        store(folder, key, made)
    except (LibraryError, OSError) as error:
        _log.info("what is compiled for this CPU is not kept: %s", error)


def _options(cpu: Cpu) -> tuple[str, ...]:
    """Return the compiler's, which looks at the CPU and knows nothing of AMX's permission."""
    if cpu.machine != "x86_64" or "amx_tile" in cpu.features:
        return NATIVE
    return (*NATIVE, "-mno-amx-tile", "-mno-amx-bf16", "-mno-amx-int8")


def _native_key(compiler: Compiler, cpu: Cpu) -> str:
    """Digest all that the build depends on; another CPU, compiler or source has another key."""
    parts = (
        source_digest(),
        *_options(cpu),
        *compiler.command,
        compiler.version,
        os.confstr("CS_GNU_LIBC_VERSION") or "",
        cpu.machine,
        cpu.name,
        *sorted(cpu.features),
    )
    return f"native-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:_DIGITS]}"


def _shortfall(level: Level) -> str:
    """Say what a level's builds do without, where that makes them slow."""
    if level.machine != "x86_64" or "avx512f" in level.features:
        return ""
    return ", and this CPU has no AVX-512"


def _unserved(folder: Path, cpu: Cpu) -> str:
    for_this = [level for level in LEVELS if level.machine == cpu.machine]
    if for_this and not any(level.runs_on(cpu) for level in for_this):
        lacks = ", ".join(sorted(for_this[-1].features - cpu.features))
        return f"this CPU lacks {lacks}, which every build for {cpu.machine} needs"
    return f"{folder} has no build for this CPU and this version"
