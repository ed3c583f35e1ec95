"""`python -m paceline_kernels.cpu.build OUT_DIR`: compile the ops for every level, for an image.

The compiler is that of $CC, else `cc`. Levels of other architectures are left out.
"""

import argparse
import logging
import platform
import sys
import tempfile
from pathlib import Path

from paceline_kernels.cpu.compile import CompileError, find_compiler
from paceline_kernels.cpu.levels import LEVELS, Level
from paceline_kernels.cpu.loading import shipped_key
from paceline_kernels.cpu.stored import store

_log = logging.getLogger(__name__)


def build(out: Path, machine: str, compiler: str = "") -> list[Level]:
    """Compile all levels of an architecture into the folder `out`, and return them.

    Raises CompileError, and OSError where `out` cannot be written to, or others may write to it.
    """
    found = find_compiler(compiler)
    out.mkdir(mode=0o755, parents=True, exist_ok=True)
    levels = [level for level in LEVELS if level.machine == machine]
    for level in levels:
        with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
            made = Path(folder, "native.so")
            found.compile(made, level.options)
            store(out, shipped_key(level), made)
        _log.info("compiled %s", level.name)
    return levels


def main(arguments: list[str] | None = None) -> int:
    """Build; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m paceline_kernels.cpu.build")
    parser.add_argument("out", type=Path, help="the folder that PACELINE_NATIVE_DIR names")
    machine = platform.machine()
    try:
        levels = build(parser.parse_args(arguments).out, machine)
    except CompileError as error:
        _log.error("%s", error)
        return 1
    if not levels:
        _log.error("there is no level for %s", machine)
    return 0 if levels else 1


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
