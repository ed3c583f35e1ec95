"""A checkpoint: sizes, weights and tokenizer of one model, wherever they lie."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

from torch import Tensor

from paceline_engine.checkpoint.stored_weights import StoredTensor
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.core.model_config import ModelConfig
from paceline_kernels.cpu import Blocks


class TensorSource(Protocol):
    """Reads a checkpoint's weights by their Hugging Face names, one at a time; keeps nothing."""

    @property
    def origin(self) -> str:
        """The file or folder, for messages."""
        ...

    def read(self, name: str) -> Tensor:
        """Read a tensor as the file has it, or raise `CorruptModel` when it has not."""
        ...


@runtime_checkable
class BlockSource(TensorSource, Protocol):
    """A file that holds weights in quantised blocks: a GGUF file."""

    @property
    def stored(self) -> Sequence[StoredTensor]:
        """Every weight, by the file's own names."""
        ...

    def read_blocks(self, name: str) -> Blocks | None:
        """Read a tensor's blocks as they are; None where it holds plain numbers.

        Raises `UnsupportedModel` where they cannot be multiplied as they are.
        """
        ...


@dataclass(frozen=True)
class Checkpoint:
    """A model that was opened and not yet loaded: `tensors` reads the weights one by one."""

    config: ModelConfig
    tensors: TensorSource
    read_tokenizer: Callable[[], TokenizerFiles]
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @cached_property
    def tokenizer(self) -> TokenizerFiles:
        """The tokenizer's files, made when they are first asked for: that may take a second.

        Raises `CorruptModel` or `UnsupportedModel` where there are none to be made.
        """
        return self.read_tokenizer()
