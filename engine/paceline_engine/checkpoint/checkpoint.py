"""A checkpoint: sizes, weights and tokenizer of one model, wherever they lie."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.core.model_config import ModelConfig


class TensorSource(Protocol):
    """Reads a checkpoint's weights by their Hugging Face names, one at a time; keeps nothing."""

    @property
    def origin(self) -> str:
        """The file or folder, for messages."""
        ...

    def read(self, name: str) -> Tensor:
        """Read a tensor as the file has it, or raise `CorruptModel` when it has not."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that was opened and not yet loaded: `tensors` reads the weights one by one."""

    config: ModelConfig
    tensors: TensorSource
    tokenizer: TokenizerFiles
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
