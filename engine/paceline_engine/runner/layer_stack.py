"""Every layer of a decoder as one call of the compiled library, where all of them are compiled.

Between two ops Python takes some ten microseconds; a layer of a small model takes a hundred for
one token. Where something is not compiled (adapters, ranks, attention of an odd shape),
`Decoder.hidden` runs the layers op by op, with the same ops and the same result.
"""

from dataclasses import dataclass

from torch import Tensor

from paceline_engine.attention.backend import AttentionBackend
from paceline_engine.attention.native_attention import NativeAttention
from paceline_engine.core.step_tensors import StepTensors
from paceline_engine.model.decoder import Decoder, DecoderLayer
from paceline_engine.model.layers.block_linear import BlockGatedLinear, BlockLinear
from paceline_engine.model.layers.fused_ops import Mlp, Normed
from paceline_engine.model.layers.linear import Linear, NativeGatedLinear, NativeLinear
from paceline_kernels.cpu import Layer, LayerProduct, LayersShape, LayersStep, NativeLayers


@dataclass(frozen=True, slots=True)
class LayerStack:
    """The compiled layers of one decoder over one KV cache."""

    decoder: Decoder
    layers: tuple[Layer, ...]
    compiled: NativeLayers
    """Runs the layers."""

    def hidden(
        self, step: StepTensors, kept_rows: Tensor | None = None
    ) -> Tensor:  # [kept, hidden]
        """See `Decoder.hidden`."""
        told = LayersStep(
            step.num_decodes,
            step.positions,
            step.slots,
            step.block_table,
            step.bounds,
            step.context_lens,
        )
        return self.compiled(self.decoder.embed(step.token_ids), told, kept_rows)


def layer_stack(decoder: Decoder, attention: AttentionBackend) -> LayerStack | None:
    """Return the decoder's layers in one call; None where one of their ops is not compiled."""
    if not isinstance(attention, NativeAttention) or attention.widens_prompts:
        return None
    config = decoder.config
    layers = []
    for index, layer in enumerate(decoder.layers):
        made = _layer(layer, attention, index)
        if made is None:
            return None
        layers.append(made)
    dtype = decoder.embedding.dtype
    norms = {norm.dtype for layer in layers for norm in layer.norms} | {decoder.norm.dtype}
    takes = all(product.weight.takes(dtype) for layer in layers for product in layer.products)
    if not takes or len(norms) > 1:
        return None
    shape = LayersShape(
        hidden=config.hidden_size,
        mlp=layers[0].down.weight.inputs,
        num_q_heads=config.num_q_heads,
        num_kv_heads=config.num_kv_heads,
        head_size=config.head_size,
        block_size=attention.kv.block_size,
        eps=config.norm_eps,
        score_scale=config.score_scale,
        dtype=dtype,
    )
    compiled = attention.native.layers(shape, layers, decoder.norm)
    return LayerStack(decoder, tuple(layers), compiled)


def _layer(layer: DecoderLayer, attention: NativeAttention, index: int) -> Layer | None:
    if not isinstance(layer.qkv, Normed) or not isinstance(layer.mlp, Normed):
        return None
    mlp = layer.mlp.product
    if not isinstance(mlp, Mlp) or not isinstance(mlp.gated, NativeGatedLinear | BlockGatedLinear):
        return None
    qkv, out, down = _plain(layer.qkv.product), _plain(layer.out), _plain(mlp.down)
    if qkv is None or out is None or down is None:
        return None
    own = attention.layers[index]
    return Layer(
        qkv_norm=layer.qkv.weight,
        qkv=qkv,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        out=out,
        attention_post_norm=layer.attention_post_norm,
        mlp_norm=layer.mlp.weight,
        gate_up=LayerProduct(mlp.gated.weight, gate=mlp.gated.gate),
        down=down,
        mlp_post_norm=layer.mlp_post_norm,
        k_cache=own.keys,
        v_cache=own.values,
        exponents=own.exponents,
        cos_sin=own.cos_sin,
        window=own.window,
    )


def _plain(product: Linear) -> LayerProduct | None:
    if not isinstance(product, NativeLinear | BlockLinear):
        return None
    return LayerProduct(product.weight, product.bias)
