"""From a checkpoint's tensors to a decoder: checked, fused, laid out for the device.

One layer is built at a time, so the peak is the decoder and one layer of the file.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from paceline_engine.checkpoint.tensors import TensorSource
from paceline_engine.errors import CorruptModel
from paceline_engine.model.config import ModelConfig
from paceline_engine.model.decoder import Decoder, Layer, Ops
from paceline_engine.model.layers.int8_linear import int8_linear
from paceline_engine.model.layers.linear import Linear, linear
from paceline_engine.settings import Quantization


def build_decoder(
    config: ModelConfig,
    source: TensorSource,
    ops: Ops,
    *,
    device: torch.device,
    dtype: torch.dtype,
    progress: Callable[[float], None],
    quantization: Quantization = "none",
) -> Decoder:
    """Read every weight that `config` asks for; embedding and head are never quantised."""
    lay_out = int8_linear if quantization == "int8" else linear
    reader = _Reader(source, device, dtype)
    hidden, vocab = config.hidden_size, config.vocab_size
    embedding = reader.read("model.embed_tokens.weight", (vocab, hidden))
    head = embedding if config.tied_head else reader.read("lm_head.weight", (vocab, hidden))
    layers = []
    for index in range(config.num_layers):
        layers.append(_layer(config, reader, f"model.layers.{index}.", lay_out))
        progress((index + 1) / config.num_layers)
    return Decoder(
        config=config,
        ops=ops,
        embedding=embedding,
        layers=tuple(layers),
        norm=reader.norm("model.norm.weight", hidden, config.norm_offset),
        head=linear(head),
        embedding_scale=torch.tensor(config.embedding_scale, dtype=dtype).item(),
    )


LayOut = Callable[[Tensor, Tensor | None], Linear]
"""Takes a weight and a bias."""


def _layer(config: ModelConfig, reader: "_Reader", prefix: str, lay_out: LayOut) -> Layer:
    hidden, mlp, size = config.hidden_size, config.intermediate_size, config.head_size
    q_size, kv_size = config.num_q_heads * size, config.num_kv_heads * size
    attention = prefix + "self_attn."
    qkv = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size}
    gate_up = {"gate_proj": mlp, "up_proj": mlp}

    def norm(name: str, width: int, *, present: bool) -> Tensor | None:
        return reader.norm(f"{prefix}{name}.weight", width, config.norm_offset) if present else None

    before_mlp = "pre_feedforward_layernorm" if config.post_norms else "post_attention_layernorm"
    return Layer(
        attention_norm=reader.norm(f"{prefix}input_layernorm.weight", hidden, config.norm_offset),
        qkv=lay_out(
            reader.fused({f"{attention}{name}.weight": (n, hidden) for name, n in qkv.items()}),
            reader.fused({f"{attention}{name}.bias": (n,) for name, n in qkv.items()})
            if config.qkv_bias
            else None,
        ),
        q_norm=norm("self_attn.q_norm", size, present=config.qk_norm),
        k_norm=norm("self_attn.k_norm", size, present=config.qk_norm),
        out=lay_out(reader.read(attention + "o_proj.weight", (hidden, q_size)), None),
        attention_post_norm=norm("post_attention_layernorm", hidden, present=config.post_norms),
        mlp_norm=reader.norm(f"{prefix}{before_mlp}.weight", hidden, config.norm_offset),
        gate_up=lay_out(
            reader.fused(
                {f"{prefix}mlp.{name}.weight": (n, hidden) for name, n in gate_up.items()}
            ),
            None,
        ),
        down=lay_out(reader.read(prefix + "mlp.down_proj.weight", (hidden, mlp)), None),
        mlp_post_norm=norm("post_feedforward_layernorm", hidden, present=config.post_norms),
    )


class _Reader:
    """Reads a tensor by name, requires its shape, and puts it on the device."""

    def __init__(self, source: TensorSource, device: torch.device, dtype: torch.dtype) -> None:
        self._source = source
        self._device = device
        self._dtype = dtype

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """One tensor of the checkpoint."""
        return self._checked(name, shape).to(device=self._device, dtype=self._dtype)

    def norm(self, name: str, size: int, offset: float) -> Tensor:
        """A norm's weight; one that counts from an offset stays float32, where nothing is lost."""
        if not offset:
            return self.read(name, (size,))
        return self._checked(name, (size,)).to(self._device, torch.float32) + offset

    def _checked(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.read(name)
        if tuple(tensor.shape) != shape:
            raise CorruptModel(
                f"{self._source.origin}: tensor {name} has shape {tuple(tensor.shape)}, "
                f"the model's config asks for {shape}."
            )
        return tensor

    def fused(self, shapes: dict[str, tuple[int, ...]]) -> Tensor:
        """Several tensors under one another, multiplied in one go."""
        return torch.cat([self.read(name, shape) for name, shape in shapes.items()])
