"""Triton's cache of compiled kernels, with a copy of each variant where the next pod finds it.

    TRITON_CACHE_MANAGER=paceline_kernels.variant_cache:VariantCache
    PACELINE_VARIANT_CACHE_DIR=/cache/triton

Triton's own folder (`TRITON_CACHE_DIR`) goes with the pod. What is not there is looked for in the
second one, which may be a volume that outlives the pod or that pods share, and what is compiled is
copied there: one file for each variant, with machine code and metadata alone, under Triton's key.
The key covers the kernel's source, its constants and types, the compiler and the compute
capability, and nothing of the machine: pods with the same image and GPU have the same keys.

A copy is used only where nobody else could have written it (`kept_files`) and its digest is right:
a file that a node's crash has cut short is compiled anew. A folder that cannot be read or written
is done without.
"""

import functools
import hashlib
import io
import logging
import os
import zipfile
from pathlib import Path
from typing import Any, Final

from triton.runtime.cache import FileCacheManager

from paceline_kernels import kept_files
from paceline_kernels.kept_files import UntrustedError

SUFFIX: Final = ".variant"
_NEEDED: Final = (".cubin", ".json")
"""What a launch needs; the stages before it are for people."""
_KEPT: Final = 1024
"""Variants in a folder, some 12 kB each; those go first that nobody took for longest."""
_DIGEST_BYTES: Final = 32

_log = logging.getLogger(__name__)


class VariantCache(FileCacheManager):  # type: ignore[misc] # Triton has no types
    """One variant's files, in Triton's own folder and kept as one file in another."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        super().__init__(key, override, dump)
        folder = os.environ.get("PACELINE_VARIANT_CACHE_DIR")
        self._kept_in = Path(folder) if folder and not (override or dump) else None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Return the paths of the variant's files; None where it must be compiled."""
        found: dict[str, str] | None = super().get_group(filename)
        if found or self._kept_in is None or not (files := _read(self._kept_in, self.key)):
            return found
        group = {name: self.put(content, name) for name, content in files.items()}
        super().put_group(filename, group)
        return group

    def put_group(self, filename: str, group: dict[str, str]) -> Any:
        """Note which files belong together, and keep those that a launch needs."""
        path = super().put_group(filename, group)
        if self._kept_in is not None:
            needed = {name: Path(at) for name, at in group.items() if name.endswith(_NEEDED)}
            _keep(self._kept_in, self.key, {name: at.read_bytes() for name, at in needed.items()})
        return path


def _read(folder: Path, key: str) -> dict[str, bytes]:
    """Return the kept files of a variant; none where there are none that can be trusted."""
    try:
        with kept_files.trusted(folder) as opened:
            handle = kept_files.open_file(opened, f"{key}{SUFFIX}")
        with os.fdopen(handle, "rb") as file:
            kept = file.read()
            _note_use(handle)
        return _unpacked(kept)
    except FileNotFoundError:
        return {}
    except OSError as error:
        _warn_once(f"a kept variant is compiled anew: {error}")
        return {}


def _keep(folder: Path, key: str, files: dict[str, bytes]) -> None:
    try:
        with kept_files.claimed(folder, SUFFIX), kept_files.trusted(folder) as opened:
            kept_files.write(opened, f"{key}{SUFFIX}", _packed(files))
            if len(names := kept_files.names(opened, SUFFIX)) > _KEPT:
                kept_files.keep_newest(opened, names, _KEPT * 3 // 4)
    except OSError as error:
        _warn_once(f"compiled variants are not kept: {error}")


def _note_use(handle: int) -> None:
    """The file's time is that of its last use."""
    try:
        os.utime(handle)
    except OSError:
        return  # a volume that cannot be written to is not tidied either


def _packed(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    packed = buffer.getvalue()
    return hashlib.sha256(packed).digest() + packed


def _unpacked(kept: bytes) -> dict[str, bytes]:
    digest, packed = kept[:_DIGEST_BYTES], kept[_DIGEST_BYTES:]
    if hashlib.sha256(packed).digest() != digest:
        raise UntrustedError("it is damaged: its digest is another")
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@functools.cache
def _warn_once(sentence: str) -> None:
    """Warn once: each variant would give the same warning."""
    _log.warning("%s", sentence)
