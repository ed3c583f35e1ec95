"""Measure the structure: lines by package, by image, and by what a process imports.

    PYTHONPATH=tests python benchmarks/structure.py [ROOT]

An image is imitated by a folder with the packages that its Dockerfile copies and no other of ours.
Its process is imported from there, so an image that lacks a package does not start. The engine
imports its other half, torch's, when it loads a model. ROOT is another checkout of the repository.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from local_cluster.dockerfile import Dockerfile

_HERE = Path(__file__).parents[1]

# Prints our lines, our modules and all modules that a process has imported before it runs.
_IMPORT = """
import importlib, json, pathlib, sys
kept = (each for each in sys.path if each and not any(pathlib.Path(each).glob("paceline_*/")))
sys.path = [sys.argv[1], *kept]
importlib.import_module(sys.argv[2] + ".__main__")
ours = [module for name, module in sys.modules.items() if name.startswith("paceline_")]
lines = sum(len(open(module.__file__, "rb").readlines()) for module in ours)
print(json.dumps([lines, len(ours), len(sys.modules)]))
"""


@dataclass(frozen=True, slots=True)
class Package:
    """One of our import packages, with the lines of each of its modules."""

    folder: Path
    lines: dict[Path, int]

    @property
    def total(self) -> int:
        """Return the lines of all its modules."""
        return sum(self.lines.values())

    @property
    def kilobytes(self) -> int:
        """Return the size of all its files, uncompiled."""
        files = (path for path in self.folder.rglob("*") if path.is_file())
        return sum(p.stat().st_size for p in files if "__pycache__" not in p.parts) // 1000


def find_packages(root: Path) -> list[Package]:
    """Find each package of the product, in the order of their folders."""
    folders = sorted(path.parent for path in root.glob("*/paceline_*/__init__.py"))
    return [
        Package(folder, {path: _count_lines(path) for path in sorted(folder.rglob("*.py"))})
        for folder in folders
        if folder.parent.name != "tests"
    ]


def contents(dockerfile: Dockerfile, root: Path, packages: Iterable[Package]) -> list[Package]:
    """Choose the packages that a Dockerfile copies, by themselves or in a folder around them."""
    copied = {root / source for source in dockerfile.sources}
    return [each for each in packages if copied & {each.folder, *each.folder.parents}]


def imported(process: str, held: Iterable[Package]) -> tuple[int, int, int]:
    """Import a process with these packages alone; return our lines, our modules, all modules."""
    with tempfile.TemporaryDirectory() as folder:
        for package in held:
            (Path(folder) / package.folder.name).symlink_to(package.folder.resolve())
        result = subprocess.run(
            [sys.executable, "-c", _IMPORT, folder, process],
            env=os.environ | {"PYTHONPATH": "", "TRITON_INTERPRET": "1"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if result.returncode != 0:
        raise SystemExit(f"{process} does not start from its image:\n{result.stderr[-2000:]}")
    lines, modules, all_modules = json.loads(result.stdout)
    return lines, modules, all_modules


def main() -> None:
    """Print both tables in Markdown."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else _HERE
    packages = find_packages(root)
    _row("package", "lines", "files", "median", "longest", "the longest file")
    _row("---", "---:", "---:", "---:", "---:", "---")
    for package in packages:
        counts = package.lines
        longest = max(counts, key=counts.__getitem__)
        place = longest.relative_to(package.folder)
        middle = int(median(counts.values()))
        _row(package.folder.name, package.total, len(counts), middle, counts[longest], place)
    every = [lines for package in packages for lines in package.lines.values()]
    _row("all", sum(every), len(every), int(median(every)), max(every), "")

    print()
    _row("image", "its packages", "kB", "lines", "lines imported", "modules", "of everybody")
    _row("---", "---", "---:", "---:", "---:", "---:", "---:")
    for path in sorted((root / "deploy" / "docker").glob("*.Dockerfile")):
        dockerfile = Dockerfile(path)
        held = contents(dockerfile, root, packages)
        names = ", ".join(each.folder.name.removeprefix("paceline_") for each in held)
        sizes = (sum(each.kilobytes for each in held), sum(each.total for each in held))
        _row(path.name.partition(".")[0], names, *sizes, *imported(dockerfile.process, held))


def _count_lines(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def _row(*cells: object) -> None:
    print(
        "|", " | ".join(f"{each:,}" if isinstance(each, int) else str(each) for each in cells), "|"
    )


if __name__ == "__main__":
    main()
