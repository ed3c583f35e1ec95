"""A Hugging Face folder: `config.json`, safetensors (one file or an index), tokenizer."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.checkpoint.tokenizer import TokenizerFiles, unique_ids
from paceline_engine.checkpoint.untrusted import corrupt_where_unreadable
from paceline_engine.errors import CorruptModel, ModelNotFound

_MAX_JSON_BYTES = 128 * 1024 * 1024
"""The longest tokenizer.json of the families has 35 MB."""


def open_folder(folder: Path) -> Checkpoint:
    """Read what is small, and where each tensor lies."""
    told = f"{folder}: its JSON files describe no model"

    def read_tokenizer() -> TokenizerFiles:
        with corrupt_where_unreadable(told):
            return _tokenizer(folder)

    with corrupt_where_unreadable(told):
        config = _read_json(folder / "config.json")
        generation = _read_json(folder / "generation_config.json", default={})
        bos = generation.get("bos_token_id", config.get("bos_token_id"))
        eos = generation.get("eos_token_id", config.get("eos_token_id"))
        return Checkpoint(
            config=from_hugging_face(config),
            tensors=SafetensorsFolder(folder),
            read_tokenizer=read_tokenizer,
            bos_token_id=bos if isinstance(bos, int) else None,
            eos_token_ids=unique_ids([eos]),
        )


class SafetensorsFolder:
    """Every `*.safetensors` of a folder, mapped into memory and read tensor by tensor."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = {name: _open_file(folder / name) for name in _shard_names(folder)}
        self._places = {
            _text_name(tensor): (name, tensor)
            for name, file in self._files.items()
            for tensor in file.keys()  # noqa: SIM118 - a file of safetensors is no dict
        }

    @property
    def origin(self) -> str:
        """Name the folder."""
        return str(self._folder)

    def read(self, name: str) -> Tensor:
        """Read one tensor; its memory is the file's until it is converted."""
        if name not in self._places:
            raise CorruptModel(f"{self._folder}: no file of the model has the tensor {name}.")
        file, own_name = self._places[name]
        tensor: Tensor = self._files[file].get_tensor(own_name)
        return tensor


def _text_name(name: str) -> str:
    """Strip what a model of text and images puts in front of its text part's names."""
    name = name.removeprefix("language_model.")
    return name.replace("model.language_model.", "model.", 1)


def _shard_names(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return _named_shards(index)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not names:
        raise ModelNotFound(f"{folder} has a config.json but no *.safetensors with the weights.")
    return names


def _named_shards(index: Path) -> list[str]:
    """Return the shards that the index names; raise for a path outside its own folder."""
    named = _read_json(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise CorruptModel(f"{index}: weight_map must say which file holds each tensor.")
    for shard in named.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise CorruptModel(
                f"{index}: weight_map must name files beside it, got {shard!r:.100}."
            )
    return sorted(set(named.values()))


def _open_file(path: Path) -> Any:
    if not path.is_file():
        raise CorruptModel(f"{path} is missing, though the index of the model names it.")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError, RuntimeError) as error:  # torch maps the file
        raise CorruptModel(
            f"{path} ({path.stat().st_size:,} bytes) is no whole safetensors file: {error}."
        ) from error


def _tokenizer(folder: Path) -> TokenizerFiles:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ModelNotFound(
            f"{folder} has no tokenizer.json; the engine reads tokenizers in that format only."
        )
    _read_json(path)  # refused here, not by the sidecar
    config = _read_json(folder / "tokenizer_config.json", default={})
    template = folder / "chat_template.jinja"
    return TokenizerFiles(
        tokenizer_json=path.read_text(encoding="utf-8"),
        chat_template=template.read_text(encoding="utf-8")
        if template.is_file()
        else _default_template(config.get("chat_template")),
        bos_token=_token_text(config.get("bos_token")),
        eos_token=_token_text(config.get("eos_token")),
    )


def _default_template(value: str | list[dict[str, str]] | None) -> str | None:
    """A model may bring several templates by name; `default` is the one for plain chats."""
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value}.get("default")
    return value


def _token_text(value: str | dict[str, Any] | None) -> str | None:
    return value["content"] if isinstance(value, dict) else value


def _read_json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    if default is not None and not path.is_file():
        return default
    try:
        if (size := path.stat().st_size) > _MAX_JSON_BYTES:
            raise CorruptModel(f"{path} has {size:,} bytes; at most {_MAX_JSON_BYTES:,} are read.")
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptModel(f"{path} is no readable JSON: {error}.") from error
    if not isinstance(content, dict):
        raise CorruptModel(f"{path} must hold a JSON object, got {type(content).__name__}.")
    return content
