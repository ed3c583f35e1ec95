"""The images that a machine without a registry cannot pull: a Debian with Python, and pause."""

import io
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

from local_cluster.cache import CACHE, digest, locked
from local_cluster.errors import ClusterFailedError
from local_cluster.oci_archive import pack
from local_cluster.progress import say

_SUITE = "bookworm"  # as the Dockerfiles' python:3.11-slim-bookworm; its Python is 3.11
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class BaseImage:
    """A minimal Debian with these packages, in place of a public base image."""

    packages: tuple[str, ...]

    @property
    def reference(self) -> str:
        return f"paceline.local/base:{digest(_SUITE, *self.packages)}"

    def archive(self) -> Path:
        """Return an OCI archive of it, made once."""
        path = CACHE / f"base-{digest(self.reference)}.tar"
        with locked("base-image"):
            if not path.exists():
                say(f"making a {_SUITE} base image with {' '.join(self.packages)}")
                pack(
                    rootfs=_debian(self.packages),
                    name=self.reference,
                    config={"Env": [_PATH]},
                    out=path,
                )
        return path


PYTHON = BaseImage(("ca-certificates", "python3", "python3-venv"))
# For the stage that compiles the ops of CPUs.
PYTHON_AND_GCC = BaseImage((*PYTHON.packages, "gcc", "libc6-dev"))


def pause_archive(binary: Path, *, reference: str) -> Path:
    """An OCI archive of the one static program that holds a pod's namespaces."""
    path = CACHE / f"pause-{digest(reference, binary.read_bytes())}.tar"
    with locked("base-image"):
        if not path.exists():
            pack(
                rootfs=_tar_of(binary), name=reference, config={"Entrypoint": ["/pause"]}, out=path
            )
    return path


def _debian(packages: tuple[str, ...]) -> bytes:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    result = subprocess.run([*command, _SUITE, "-"], capture_output=True, check=False)
    if result.returncode != 0:
        raise ClusterFailedError(f"mmdebstrap failed: {result.stderr.decode()[-2000:]}")
    return result.stdout


def _tar_of(binary: Path) -> bytes:
    member = tarfile.TarInfo("pause")
    member.mode = 0o755
    content = binary.read_bytes()
    member.size = len(content)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()
