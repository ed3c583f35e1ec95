"""Builds a decoder from a checkpoint's tensors: checked, fused, laid out for the device.

One layer is built at a time, so the peak is the decoder and one layer of the file. Measured on a
CPU, memory that no file backs: SmolLM2 from GGUF, 513 MiB of weights, 37 MiB at its peak above what
stays; 961 MiB of safetensors in bfloat16 as 1,922 MiB of float32, 19 MiB; as 483 MiB of FP8, 141,
the float32 of one gate and up while it is quantised. The mapped file counts beside it in a
process's resident memory, but the kernel takes its pages back when it needs them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from paceline_engine.checkpoint.checkpoint import BlockSource, TensorSource
from paceline_engine.core.model_config import Activation, ModelConfig
from paceline_engine.errors import BadSettings, CorruptModel
from paceline_engine.loading.pinned_copies import PinnedCopies
from paceline_engine.model.decoder import Decoder, DecoderLayer
from paceline_engine.model.group import Group
from paceline_engine.model.layers import fp8_rows
from paceline_engine.model.layers.block_linear import (
    BlockGatedLinear,
    StoredEmbedding,
    StoredWeight,
    block_linear,
    fused_gated_blocks,
)
from paceline_engine.model.layers.fused_ops import (
    Gates,
    Mlp,
    NormedLinear,
    gated_mlp,
    normed,
)
from paceline_engine.model.layers.gated_linear import fused_gated_linear
from paceline_engine.model.layers.linear import Linear, NativeGatedLinear, linear
from paceline_engine.model.layers.quantized_linear import quantized_linear
from paceline_engine.model.ops import Ops
from paceline_engine.model.sharding import SummedLinear, part_of, shard_of
from paceline_engine.settings import Quantization
from paceline_kernels.cpu import Blocks

Wrap = Callable[[str, dict[str, int], int, Linear], Linear]
"""Takes a layer's prefix, the outputs of each stacked weight, their inputs, and the product."""


@dataclass(frozen=True, slots=True)
class Build:
    """How each product of a layer is built."""

    quantization: Quantization
    wrap: Wrap
    ops: Ops
    gates: Gates
    group: Group

    def lay_out(self, weight: Tensor | StoredWeight, bias: Tensor | None = None) -> Linear:
        """Make the product of one weight [out, in]."""
        if isinstance(weight, StoredWeight):
            return block_linear(weight, bias)
        if self.quantization in ("none", "as_stored"):
            return linear(weight, bias)
        return quantized_linear(weight, bias, to=self.quantization)

    def fused_gate(
        self, weight: Tensor | StoredWeight, activation: Activation
    ) -> NativeGatedLinear | BlockGatedLinear | None:
        """Make the product [2 * out, in] and its gate in one, where the gate follows at once."""
        if self.wrap is not as_it_is:
            return None
        if isinstance(weight, StoredWeight):
            return fused_gated_blocks(weight, activation)
        plain: Quantization = "none" if self.quantization == "as_stored" else self.quantization
        return fused_gated_linear(weight, activation, plain)

    def behind(self, norm: Tensor, eps: float, product: Linear) -> NormedLinear:
        """Put the norm of this weight [hidden] before a product."""
        return normed(norm, eps, self.ops.add_rms_norm, product)


def as_it_is(_prefix: str, _parts: dict[str, int], _num_inputs: int, product: Linear) -> Linear:
    """Return the product: no adapter adds to it."""
    return product


def build_decoder(
    config: ModelConfig,
    source: TensorSource,
    ops: Ops,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[float], None],
    quantization: Quantization = "none",
    quantizes_head: bool = False,
    wrap: Wrap = as_it_is,
    group: Group | None = None,
) -> Decoder:
    """Read every weight that `config` asks for; the embedding is never quantised here.

    `quantizes_head` is for a model whose tokens another one verifies. Each rank reads its part of
    the layers. With `as_stored` every weight that the file holds in blocks stays so.
    """
    group = group or Group()
    gates = Gates(ops.gelu_tanh_mul, fp8_rows.gelu_tanh_mul)
    if config.activation == "silu":
        gates = Gates(ops.silu_mul, fp8_rows.silu_mul)
    build = Build(quantization, wrap, ops, gates, group)
    blocks = blocks_of(source) if quantization == "as_stored" else None
    reader = _Reader(source, device, dtype, group, blocks)
    embedding, head = _embedding_and_head(config, reader, build, quantizes_head=quantizes_head)
    layers = []
    for index in range(config.num_layers):
        layers.append(_layer(config, reader, f"model.layers.{index}.", build))
        progress((index + 1) / config.num_layers)
    return Decoder(
        config=shard_of(config, group.size),
        ops=ops,
        embedding=embedding,
        layers=tuple(layers),
        norm=reader.norm("model.norm.weight", config.hidden_size, config.norm_offset),
        head=head,
        embedding_scale=torch.tensor(config.embedding_scale, dtype=dtype).item(),
    )


def blocks_of(source: TensorSource) -> BlockSource:
    """Return the source as one of blocks. Raises `BadSettings` where it is no GGUF file."""
    if isinstance(source, BlockSource):
        return source
    raise BadSettings(
        "PACELINE_ENGINE_QUANTIZATION or PACELINE_ENGINE_DRAFT_QUANTIZATION is as_stored, which "
        f"keeps a GGUF file's own blocks: {source.origin} is no GGUF file."
    )


def _embedding_and_head(
    config: ModelConfig, reader: "_Reader", build: Build, *, quantizes_head: bool
) -> tuple[Tensor | StoredEmbedding, Linear]:
    """Read the embedding and the head, which may be the same weight."""
    shape = (config.vocab_size, config.hidden_size)
    embedding = reader.embedding("model.embed_tokens.weight", shape)
    if not config.tied_head:
        head = reader.fused({"lm_head.weight": shape}, cut=None)
        if quantizes_head or isinstance(head, StoredWeight):
            return embedding, build.lay_out(head)
        return embedding, linear(head, is_head=True)
    if isinstance(embedding, StoredEmbedding):
        return embedding, embedding
    if quantizes_head:
        return embedding, build.lay_out(embedding)
    return embedding, linear(embedding, is_head=True)


def _layer(config: ModelConfig, reader: "_Reader", prefix: str, build: Build) -> DecoderLayer:
    hidden, mlp, size = config.hidden_size, config.intermediate_size, config.head_size
    q_size, kv_size = config.num_q_heads * size, config.num_kv_heads * size
    qkv = {"self_attn.q_proj": q_size, "self_attn.k_proj": kv_size, "self_attn.v_proj": kv_size}

    def stacked(parts: dict[str, int]) -> Tensor | StoredWeight:
        return reader.fused({f"{prefix}{n}.weight": (size, hidden) for n, size in parts.items()})

    def product(
        parts: dict[str, int], weight: Tensor | StoredWeight, bias: Tensor | None = None
    ) -> Linear:
        return build.wrap(prefix, parts, hidden, build.lay_out(weight, bias))

    def mlp_of(parts: dict[str, int], down: Linear) -> Linear:
        weight = stacked(parts)
        if (gated := build.fused_gate(weight, config.activation)) is not None:
            return Mlp(gated, down)
        return gated_mlp(product(parts, weight), build.gates, down)

    def summed(name: str, num_inputs: int) -> Linear:
        weight = reader.fused({f"{prefix}{name}.weight": (hidden, num_inputs)}, cut=1)
        product = build.lay_out(weight)
        if build.group.size > 1:
            product = SummedLinear(product, build.group)
        return build.wrap(prefix, {name: hidden}, num_inputs, product)

    def norm(name: str, width: int = hidden) -> Tensor:
        return reader.norm(f"{prefix}{name}.weight", width, config.norm_offset)

    gate_up = {"mlp.gate_proj": mlp, "mlp.up_proj": mlp}
    before_mlp = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
    qkv_bias = None
    if config.qkv_bias:
        qkv_bias = reader.stacked({f"{prefix}{name}.bias": (size,) for name, size in qkv.items()})
    return DecoderLayer(
        qkv=build.behind(
            norm("input_layernorm"), config.norm_eps, product(qkv, stacked(qkv), qkv_bias)
        ),
        q_norm=norm("self_attn.q_norm", size) if config.qk_norm else None,
        k_norm=norm("self_attn.k_norm", size) if config.qk_norm else None,
        out=summed("self_attn.o_proj", q_size),
        attention_post_norm=norm("post_attention_layernorm") if config.post_norms else None,
        mlp=build.behind(
            norm(before_mlp), config.norm_eps, mlp_of(gate_up, summed("mlp.down_proj", mlp))
        ),
        mlp_post_norm=norm("post_feedforward_layernorm") if config.post_norms else None,
    )


class _Reader:
    """Reads a tensor by name, requires its shape, and puts it on the device.

    Where `blocks` is the source, weights that it holds in blocks stay as they are.
    """

    def __init__(
        self,
        source: TensorSource,
        device: torch.device,
        dtype: torch.dtype,
        group: Group,
        blocks: BlockSource | None,
    ) -> None:
        self._source = source
        self._blocks = blocks
        self._device = device
        self._dtype = dtype
        self._group = group
        self._copies = PinnedCopies(device) if device.type == "cuda" else None

    def read(self, name: str, shape: tuple[int, ...], *, cut: int | None = None) -> Tensor:
        """Read one tensor of the checkpoint, or the rank's part along the dimension `cut`."""
        tensor = self._checked(name, shape)
        if cut is not None and self._group.size > 1:
            tensor = part_of(tensor, self._group, cut).contiguous()
        if self._copies is not None:
            tensor = self._copies.put(tensor)
        return tensor.to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, size: int, offset: float) -> Tensor:
        """Read a norm's weight; one with an offset stays float32, where nothing is lost."""
        if not offset:
            return self.read(name, (size,))
        return self._checked(name, (size,)).to(self._device, torch.float32) + offset

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.read(name)
        self._require(name, tuple(tensor.shape), shape)
        return tensor

    def _require(self, name: str, seen: tuple[int, ...], wanted: tuple[int, ...]) -> None:
        if seen != wanted:
            raise CorruptModel(
                f"{self._source.origin}: tensor {name} has shape {seen}, "
                f"the model's config asks for {wanted}."
            )

    def stacked(self, shapes: Mapping[str, tuple[int, ...]]) -> Tensor:
        """Stack the rank's outputs of several tensors of plain numbers."""
        return torch.cat([self.read(name, shape, cut=0) for name, shape in shapes.items()])

    def fused(
        self, shapes: Mapping[str, tuple[int, int]], *, cut: int | None = 0
    ) -> Tensor | StoredWeight:
        """Stack the rank's part of several weights, to be multiplied as one."""
        parts = [
            self._part(name, shape, cut) or self.read(name, shape, cut=cut)
            for name, shape in shapes.items()
        ]
        plain = [part for part in parts if isinstance(part, Tensor)]
        if len(plain) < len(parts):
            return StoredWeight(tuple(parts))
        return plain[0] if len(plain) == 1 else torch.cat(plain)

    def embedding(self, name: str, shape: tuple[int, int]) -> Tensor | StoredEmbedding:
        """Read an embedding, whole in each rank."""
        blocks = self._stored(name, shape)
        return self.read(name, shape) if blocks is None else StoredEmbedding(blocks, self._dtype)

    def _stored(self, name: str, shape: tuple[int, int]) -> Blocks | None:
        blocks = None if self._blocks is None else self._blocks.read_blocks(name)
        if blocks is not None:
            self._require(name, (blocks.outputs, blocks.inputs), shape)
        return blocks

    def _part(self, name: str, shape: tuple[int, int], cut: int | None) -> Blocks | None:
        blocks, group = self._stored(name, shape), self._group
        if blocks is None or cut is None or group.size == 1:
            return blocks
        if cut == 0:
            return Blocks(blocks.kind, part_of(blocks.rows, group, 0).contiguous())
        inputs = blocks.inputs // group.size
        if inputs % blocks.block_inputs:
            raise BadSettings(
                f"PACELINE_ENGINE_TENSOR_PARALLEL_SIZE is {group.size}, which cuts the "
                f"{blocks.inputs} inputs of {name} within a block: with quantization as_stored a "
                f"rank's part of {blocks.kind} must be a multiple of {blocks.block_inputs}."
            )
        return blocks.cut_inputs(group.rank * inputs, inputs)
