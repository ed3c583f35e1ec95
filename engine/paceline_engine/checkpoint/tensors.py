"""TensorSource (Protocol): a checkpoint's weights, by their Hugging Face names."""

from typing import Protocol

from torch import Tensor


class TensorSource(Protocol):
    """Reads one tensor at a time; nothing is kept."""

    @property
    def origin(self) -> str:
        """The file or folder, for messages."""
        ...

    def read(self, name: str) -> Tensor:
        """Read a tensor as the file has it, or raise `CorruptModel` when it has not."""
        ...
