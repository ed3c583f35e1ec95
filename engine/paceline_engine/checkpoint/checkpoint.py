"""A checkpoint: sizes, weights and tokenizer of one model, wherever they lie."""

from dataclasses import dataclass

from paceline_engine.checkpoint.tensors import TensorSource
from paceline_engine.checkpoint.tokenizer import TokenizerFiles
from paceline_engine.core.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Opened, not yet loaded: `tensors` reads the weights one by one."""

    config: ModelConfig
    tensors: TensorSource
    tokenizer: TokenizerFiles
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
