"""Single programs of Debian's packages: the one on PATH, or Debian's, unpacked into the cache.

Installing the packages would start Prometheus and Alertmanager; only their programs are wanted.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from local_cluster.cache import CACHE, locked
from local_cluster.errors import UnavailableError


def debian_program(package: str, name: str) -> Path:
    """Return the path of a program that lies in a package's `/usr/bin`.

    Raises:
        UnavailableError: it is not on PATH, and this is no Debian or its package cannot be had.
    """
    kept = CACHE / name
    if on_path := shutil.which(name):
        return Path(on_path)
    with locked(f"debian-{package}"):
        if not kept.is_file():
            _fetch(package, kept)
    return kept


def _fetch(package: str, target: Path) -> None:
    if shutil.which("apt-get") is None:
        raise UnavailableError(f"this test needs {target.name} on PATH: install it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # A machine that is not root may still have the lists; one that is brings them up to date.
        subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=False)
        _run("apt-get", "-qq", "-o=APT::Sandbox::User=root", "download", package, folder=folder)
        [archive] = Path(folder).glob(f"{package}_*.deb")
        _run("dpkg-deb", "--extract", archive.name, "unpacked", folder=folder)
        shutil.move(Path(folder) / "unpacked" / "usr" / "bin" / target.name, target)


def _run(*command: str, folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
