"""Finds a manifest's model on this machine, as the engine would, and reads how large it is."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

from paceline_cli.errors import LocalError
from paceline_cli.plan.gguf_header import GgufHeader, read_header
from paceline_engine.checkpoint.builtin import installed
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.checkpoint.gguf_config import read_config
from paceline_engine.checkpoint.stored_weights import ROPE_DIVISORS, kept_bytes
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import EngineError
from paceline_engine.hardware.model_size import ModelSize, Precision, rank_part, size_of


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
        size = size_of(rank_part(_config(named.uri, path), ranks), precision)
        return _as_stored(named.uri, path, size, ranks) if precision.is_as_stored else size
    except (EngineError, OSError, ValueError) as problem:
        raise ModelFileError(
            f"{named.field}: {named.uri}: {path}: {problem}; or {named.flags}"
        ) from problem


def _path(named: Named, cache: Path) -> Path:
    uri, revision = named.uri, named.revision
    scheme, _, rest = uri.partition("://")
    if scheme == "builtin":
        path = installed(rest)
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


def _config(uri: str, path: Path) -> ModelConfig:
    if (path / "config.json").is_file():
        return from_hugging_face(json.loads((path / "config.json").read_text(encoding="utf-8")))
    header = _gguf_header(uri, path)
    has_head = any(tensor.name == "output.weight" for tensor in header.tensors)
    return read_config(header, has_head=has_head, rope_divisors=None)


def _gguf_header(uri: str, path: Path) -> GgufHeader:
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            raise ValueError(f"{uri} holds neither a config.json nor exactly one *.gguf")
        path = files[0]
    return read_header(path)


def _as_stored(uri: str, path: Path, size: ModelSize, ranks: int) -> ModelSize:
    """Count the weights in the kinds that the file has them in."""
    if (path / "config.json").is_file():
        raise ValueError("quantization AsStored keeps a GGUF file's own blocks, and it is a folder")
    tensors = [t for t in _gguf_header(uri, path).tensors if t.name != ROPE_DIVISORS]
    num_bytes = kept_bytes(tensors, size.precision.bytes_per_value, ranks=ranks)
    words = f"{size.num_parameters:,} parameters as the file has them"
    return replace(size, weight_bytes=num_bytes, weight_arithmetic=words)
