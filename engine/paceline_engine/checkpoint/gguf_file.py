"""A GGUF file: sizes and tokenizer from its metadata, weights dequantised or as they are stored."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGUFReader, ReaderTensor, dequantize
from torch import Tensor

from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.gguf_config import head_size, read_config
from paceline_engine.checkpoint.gguf_reader import GuardedReader
from paceline_engine.checkpoint.gguf_tokenizer import build_tokenizer
from paceline_engine.checkpoint.stored_weights import (
    KEPT,
    ROPE_DIVISORS,
    StoredTensor,
    UnsupportedKind,
    require_kept,
)
from paceline_engine.checkpoint.tokenizer import TokenizerFiles, unique_ids
from paceline_engine.checkpoint.untrusted import corrupt_where_unreadable
from paceline_engine.errors import CorruptModel, UnsupportedModel
from paceline_kernels.cpu import BLOCK_KINDS, Blocks, native_ops

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Where a norm follows attention, the one before the MLP has a name of its own.
_POST_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GEMMA = ("gemma2", "gemma3")
_ROW_BLOCKS = 64
"""Blocks of a row at most, where a tensor is dequantised."""


def open_gguf(path: Path) -> Checkpoint:
    """Read the metadata; the weights stay in the mapped file."""
    told = f"{path}: its metadata describe no model"
    reader = GuardedReader(path)
    metadata = FileMetadata(path, reader)

    def read_tokenizer() -> TokenizerFiles:
        with corrupt_where_unreadable(told):
            return build_tokenizer(metadata)

    with corrupt_where_unreadable(told):
        tensors = GgufTensors(path, reader, metadata)
        return Checkpoint(
            config=read_config(
                metadata,
                has_head=tensors.has("output.weight"),
                rope_divisors=tensors.rope_divisors(),
            ),
            tensors=tensors,
            read_tokenizer=read_tokenizer,
            bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
            eos_token_ids=unique_ids(
                metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")
            ),
        )


class FileMetadata:
    """Implements `GgufMetadata` over a file that is open."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self._path = path
        self._fields = reader.fields
        self._values: dict[str, Any] = {}  # a vocabulary is asked for twice

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, as Python has it."""
        return self[key] if key in self._fields else default

    def __getitem__(self, key: str) -> Any:
        """Return what must be there."""
        field = self._fields.get(key)
        if field is None:
            raise CorruptModel(f"{self._path} has no metadata {key!r}.")
        if key not in self._values:
            self._values[key] = field.contents()
        return self._values[key]


class GgufTensors:
    """Tensors by their Hugging Face names, in float32 or in their blocks.

    Implements `BlockSource`.
    """

    def __init__(self, path: Path, reader: GGUFReader, metadata: FileMetadata) -> None:
        self._path = path
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = metadata["general.architecture"]
        self._is_gemma = architecture in _GEMMA
        self._layer_names = _LAYER_NAMES | (_POST_NORM_NAMES if self._is_gemma else {})
        self._is_permuted = architecture == "llama"
        self._head_size = head_size(metadata) if self._is_permuted else 0

    @property
    def origin(self) -> str:
        """Name the file."""
        return str(self._path)

    def has(self, gguf_name: str) -> bool:
        """Tell whether the file has a tensor of this name."""
        return gguf_name in self._tensors

    def read(self, name: str) -> Tensor:
        """Dequantise one tensor."""
        gguf_name = self._gguf_name(name)
        values = torch.from_numpy(self.read_raw(gguf_name))
        if self._is_gemma and gguf_name.endswith("norm.weight"):
            return values - 1.0  # the converter has added 1 to Gemma's norm weights
        return self._in_our_order(gguf_name, values)

    @property
    def stored(self) -> list[StoredTensor]:
        """See `BlockSource`."""
        return [
            _stored(tensor) for tensor in self._tensors.values() if tensor.name != ROPE_DIVISORS
        ]

    def read_blocks(self, name: str) -> Blocks | None:
        """See `BlockSource`."""
        tensor = self._tensor(self._gguf_name(name))
        try:
            require_kept(_stored(tensor))
        except UnsupportedKind as problem:
            raise UnsupportedModel(f"{self._path}: {problem}.") from problem
        blocks = _blocks(tensor)
        if blocks is None:
            return None
        return Blocks(blocks.kind, self._in_our_order(tensor.name, blocks.rows))

    def _in_our_order(self, gguf_name: str, rows: Tensor) -> Tensor:
        is_q_or_k = ".attn_q." in gguf_name or ".attn_k." in gguf_name
        if not (self._is_permuted and is_q_or_k):
            return rows
        # A model may have an odd number of heads; the two halves of each are what is even.
        if self._head_size % 2 or rows.shape[0] % self._head_size:
            raise CorruptModel(
                f"{self._path}: tensor {gguf_name} has {rows.shape[0]} rows, which are no heads of "
                f"{self._head_size}."
            )
        return _unpermuted(rows, self._head_size)

    def rope_divisors(self) -> list[float] | None:
        """Return each frequency's divisor; None where the file does not say."""
        if not self.has(ROPE_DIVISORS):
            return None
        divisors: list[float] = self.read_raw(ROPE_DIVISORS).tolist()
        return divisors

    def _gguf_name(self, name: str) -> str:
        stem, _, kind = name.rpartition(".")
        if not stem.startswith("model.layers."):
            return f"{_NAMES[stem]}.{kind}"
        index, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{index}.{self._layer_names[part]}.{kind}"

    def read_raw(self, gguf_name: str) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Dequantise a tensor by the file's own name."""
        tensor = self._tensor(gguf_name)
        try:
            values = _dequantised(tensor)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self._path}: tensor {gguf_name} is of type {tensor.tensor_type.name}, "
                "which cannot be dequantised."
            ) from error
        return values.copy() if np.may_share_memory(values, tensor.data) else values

    def _tensor(self, gguf_name: str) -> ReaderTensor:
        tensor = self._tensors.get(gguf_name)
        if tensor is None:
            raise CorruptModel(f"{self._path} has no tensor {gguf_name}.")
        return tensor


def _dequantised(tensor: ReaderTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Dequantise by the compiled op, which gives the values of the gguf package, or by the package.

    Raises NotImplementedError where the package does not know the kind.
    """
    native = native_ops() if tensor.tensor_type.name in KEPT else None
    if native is None or (blocks := _blocks(tensor)) is None:
        return _dequantised_by_package(tensor)
    values: np.ndarray[Any, np.dtype[np.float32]] = native.block_matmul.values(blocks).numpy()
    return values.reshape(*tensor.data.shape[:-1], -1)


def _blocks(tensor: ReaderTensor) -> Blocks | None:
    """Copy a tensor's rows of blocks, [outputs, bytes]; None where they are of no kept kind."""
    kind = tensor.tensor_type.name
    if kind not in KEPT:
        return None
    rows = np.array(tensor.data, dtype=np.uint8).reshape(-1, tensor.data.shape[-1])
    kept = BLOCK_KINDS[BLOCK_KINDS.index(kind)]  # typed as one of them
    return Blocks(kept, torch.from_numpy(rows))


def _dequantised_by_package(tensor: ReaderTensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Dequantise in rows of a length that suits the package, which takes sixteen at a time.

    Rows are blocks one behind the other, so they may be cut anywhere between two. Those of a model
    are so short, or so long, that this takes twice to four times as long with them.
    """
    data, kind = tensor.data, tensor.tensor_type
    values_of_block, block_bytes = GGML_QUANT_SIZES[kind]
    if values_of_block == 1:  # plain numbers
        plain: np.ndarray[Any, np.dtype[np.float32]] = dequantize(data, kind)
        return plain
    num_blocks = data.size // block_bytes
    row_blocks = max(n for n in range(1, _ROW_BLOCKS + 1) if num_blocks % n == 0)
    rows: np.ndarray[Any, np.dtype[np.float32]]
    rows = dequantize(data.reshape(-1, row_blocks * block_bytes), kind)
    return rows.reshape(*data.shape[:-1], -1)


def _stored(tensor: ReaderTensor) -> StoredTensor:
    sizes = tuple(int(size) for size in reversed(tensor.shape))
    return StoredTensor(tensor.name, tensor.tensor_type.name, sizes)


def _unpermuted(values: Tensor, head_size: int) -> Tensor:  # [heads * head_size, ...]
    """Bring the rows of each head from pairs (0, half), (1, half + 1) ... back to two halves.

    The converter for Llama reorders q and k for a rotation of neighbours; ours is of halves.
    """
    heads = values.shape[0] // head_size
    pairs = values.reshape(heads, head_size // 2, 2, *values.shape[1:])
    return pairs.transpose(1, 2).reshape(values.shape)
