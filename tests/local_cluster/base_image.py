"""The images that a machine without a registry cannot pull: a Debian, and single programs."""

import io
import subprocess
import tarfile
from collections.abc import Sequence
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


def program_image(
    binary: Path, *, debian: Sequence[str] | None = None, folder: str = ""
) -> tuple[str, Path]:
    """Return the reference of an image that runs one program, and its archive."""
    inputs = (*(debian or ()), *([folder] if folder else ()))
    reference = f"paceline.local/{binary.name}:{digest(binary.read_bytes(), *inputs)}"
    archive = program_archive(binary, reference=reference, debian=debian, folder=folder)
    return reference, archive


def program_archive(
    binary: Path, *, reference: str, debian: Sequence[str] | None = None, folder: str = ""
) -> Path:
    """Return an OCI archive that runs one program, which stands at `/NAME` or `/FOLDER/NAME`.

    A static program is all of the image; another stands in a minimal Debian with these packages.
    """
    place = f"{folder}/{binary.name}" if folder else binary.name
    path = CACHE / f"{binary.name}-{digest(reference, binary.read_bytes())}.tar"
    with locked("base-image"):
        if not path.exists():
            pack(
                rootfs=_with_program(b"" if debian is None else _debian(debian), binary, place),
                name=reference,
                config={"Entrypoint": [f"/{place}"], "Env": [f"{_PATH}:/"]},
                out=path,
            )
    return path


def _debian(packages: Sequence[str]) -> bytes:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(packages)}"]
    result = subprocess.run([*command, _SUITE, "-"], capture_output=True, check=False)
    if result.returncode != 0:
        raise ClusterFailedError(f"mmdebstrap failed: {result.stderr.decode()[-2000:]}")
    return result.stdout


def _with_program(rootfs: bytes, binary: Path, place: str) -> bytes:
    member = tarfile.TarInfo(place)
    member.mode = 0o755
    content = binary.read_bytes()
    member.size = len(content)
    out = io.BytesIO(rootfs)
    with tarfile.open(fileobj=out, mode="a" if rootfs else "w") as archive:
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()
