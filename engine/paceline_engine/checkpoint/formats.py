"""Opens a checkpoint in whichever format it has: the one module that knows all formats."""

from pathlib import Path

from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.hugging_face import open_folder
from paceline_engine.errors import ModelNotFound


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a Hugging Face folder, a GGUF file, or a folder with exactly one GGUF file in it."""
    if path.is_file():
        return _open_gguf(path)
    if (path / "config.json").is_file():
        return open_folder(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return _open_gguf(files[0])
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:8]) or "nothing"
    raise ModelNotFound(
        f"{path} holds no model: needed is a config.json with *.safetensors beside it, "
        f"or exactly one *.gguf; found {found}."
    )


def _open_gguf(path: Path) -> Checkpoint:
    # Not imported at the top: its reader is of one format alone.
    from paceline_engine.checkpoint.gguf_file import open_gguf  # noqa: PLC0415 - as above

    return open_gguf(path)
