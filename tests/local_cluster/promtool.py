"""Prometheus's rule checker: the one on PATH, or Debian's, unpacked into the cache.

Installing Debian's package would start a Prometheus; only its one program is wanted.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from local_cluster.cache import CACHE
from local_cluster.errors import UnavailableError

_PACKAGE = "prometheus"


def promtool() -> Path:
    """Return the path of promtool, or raise `UnavailableError`."""
    kept = CACHE / "promtool"
    if on_path := shutil.which("promtool"):
        return Path(on_path)
    if not kept.is_file():
        _fetch(kept)
    return kept


def _fetch(target: Path) -> None:
    if shutil.which("apt-get") is None:
        raise UnavailableError(
            "the alerts' tests need promtool on PATH: install Prometheus's tools"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # A machine that is not root may still have the lists; one that is brings them up to date.
        subprocess.run(["apt-get", "-qq", "update"], capture_output=True, check=False)
        _run("apt-get", "-qq", "-o=APT::Sandbox::User=root", "download", _PACKAGE, folder=folder)
        [archive] = Path(folder).glob(f"{_PACKAGE}_*.deb")
        _run("dpkg-deb", "--extract", archive.name, "unpacked", folder=folder)
        shutil.move(Path(folder) / "unpacked" / "usr" / "bin" / "promtool", target)


def _run(*command: str, folder: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"{' '.join(command)} failed: {done.stderr.strip()[-300:]}")
