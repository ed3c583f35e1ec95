"""A checkpoint: sizes, weights and tokenizer of one model, wherever they lie."""

from dataclasses import dataclass
from pathlib import Path

from paceline_engine.checkpoint.tensors import TensorSource
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.errors import ModelNotFound
from paceline_engine.model.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Opened, not yet loaded: `tensors` reads the weights one by one."""

    config: ModelConfig
    tensors: TensorSource
    tokenizer: TokenizerFiles
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder, a GGUF file, or a folder with exactly one GGUF file in it."""
    from paceline_engine.checkpoint.gguf_file import open_gguf  # noqa: PLC0415 - each format brings
    from paceline_engine.checkpoint.hugging_face import open_folder  # noqa: PLC0415 - its own needs

    if path.is_file():
        return open_gguf(path)
    if (path / "config.json").is_file():
        return open_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return open_gguf(files[0])
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
    raise ModelNotFound(
        f"{path} holds no model: needed is a config.json with *.safetensors beside it, "
        f"or exactly one *.gguf; found {found}."
    )
