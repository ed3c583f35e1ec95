"""The decoder of every family, from token ids to logits.

A residual stream runs through the layers; each adds to it what attention and then the MLP make of
its normed value. The sum is kept apart from the last addend, so that adding and norming is one op.
Some families norm the addend as well before it joins. Cut at its attentions, a decoder falls into
stages that know nothing of sequences: for few tokens others may serve better (`row_stages.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from paceline_engine.core.model_config import ModelConfig
from paceline_engine.model.layers.block_linear import StoredEmbedding
from paceline_engine.model.layers.fused_ops import NormedLinear
from paceline_engine.model.layers.linear import Linear, PlainLinear
from paceline_engine.model.ops import Ops


class Attention(Protocol):
    """One step's attention, over what the KV cache holds and what the step adds to it."""

    def attend(
        self,
        layer: int,
        qkv: Tensor,  # [tokens, qkv_size]
        q_norm: Tensor | None,  # [head_size]
        k_norm: Tensor | None,  # [head_size]
    ) -> Tensor:  # [tokens, num_q_heads * head_size]
        """Norm and rotate q and k, store k and v, attend to everything before each token."""
        ...


class DecoderStages(Protocol):
    """What a decoder computes between its attentions, for each token by itself."""

    def first(
        self,
        token_ids: Tensor,  # [tokens]
    ) -> tuple[Tensor, Tensor]:  # [tokens, qkv_size], [tokens, hidden]
        """Go from the tokens to the first layer's attention: its qkv, and the residual stream."""
        ...

    def between(
        self,
        index: int,
        attended: Tensor,  # [tokens, num_q_heads * head_size]
        residual: Tensor,  # [tokens, hidden]
    ) -> tuple[Tensor, Tensor]:  # [tokens, qkv_size], [tokens, hidden]
        """Go from a layer's attention to the next one's: its qkv, and the residual stream."""
        ...

    def finish(
        self,
        attended: Tensor,  # [kept, num_q_heads * head_size]
        residual: Tensor,  # [kept, hidden]
    ) -> Tensor:  # [kept, hidden]
        """Go from the last layer's attention to the normed states that the head reads."""
        ...


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """The weights of one layer."""

    qkv: NormedLinear
    q_norm: Tensor | None  # [head_size]
    k_norm: Tensor | None  # [head_size]
    out: Linear
    attention_post_norm: Tensor | None  # [hidden]
    mlp: NormedLinear
    mlp_post_norm: Tensor | None  # [hidden]


@dataclass(frozen=True, slots=True)
class Decoder:
    """All weights, and the one way through them."""

    config: ModelConfig
    ops: Ops
    embedding: Tensor | StoredEmbedding  # [vocab, hidden]
    layers: tuple[DecoderLayer, ...]
    norm: Tensor  # [hidden]
    head: Linear
    embedding_scale: float = 1.0
    """Rounded to the model's type."""
    few_rows: "Callable[[Decoder, int], DecoderStages | None] | None" = None
    """Gives other stages for steps of so many decodes, where some serve better than its own."""

    def hidden(
        self,
        token_ids: Tensor,  # [tokens]
        attention: Attention,
        kept_rows: Tensor | None = None,  # [kept]: all where None
        stages: DecoderStages | None = None,
    ) -> Tensor:  # [kept, hidden]
        """Run every layer over the step's tokens; return the normed states that the head reads.

        For a token whose state nobody reads, the last layer computes only keys and values.
        `stages` compute what the decoder's own do.
        """
        stages = stages or self
        *before, last = range(len(self.layers))
        x, residual = stages.first(token_ids)
        for index in before:
            x = self._attend(attention, index, x)
            x, residual = stages.between(index, x, residual)
        x = self._attend(attention, last, x)
        if kept_rows is not None:
            x, residual = x[kept_rows], residual[kept_rows]
        return stages.finish(x, residual)

    def stages_for(self, num_tokens: int, *, has_adapters: bool) -> DecoderStages | None:
        """Return what serves steps of so many tokens better than the decoder's own stages, if any.

        Adapters add to each product by itself, so steps with them have none.
        """
        if self.few_rows is None or has_adapters:
            return None
        return self.few_rows(self, num_tokens)

    def embed(self, token_ids: Tensor) -> Tensor:  # [tokens] -> [tokens, hidden]
        """Look up and scale the embeddings of tokens: where the residual stream begins."""
        residual = self.embedding[token_ids]
        return residual if self.embedding_scale == 1.0 else residual.mul_(self.embedding_scale)

    def first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderStages`."""
        qkv, eps, embedding = self.layers[0].qkv, self.config.norm_eps, self.embedding
        if isinstance(embedding, StoredEmbedding):
            token_ids, embedding = torch.arange(len(token_ids)), embedding[token_ids]
        x, residual = self.ops.embed_rms_norm(
            token_ids, embedding, qkv.weight, eps, self.embedding_scale
        )
        return qkv.product(x), residual

    def between(self, index: int, attended: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """See `DecoderStages`."""
        x, residual = self._finish_layer(index, attended, residual)
        return self.layers[index + 1].qkv(x, residual)

    def finish(self, attended: Tensor, residual: Tensor) -> Tensor:
        """See `DecoderStages`."""
        x, residual = self._finish_layer(len(self.layers) - 1, attended, residual)
        return self.ops.add_rms_norm(x, residual, self.norm, self.config.norm_eps)[0]

    def _attend(self, attention: Attention, index: int, qkv: Tensor) -> Tensor:
        layer = self.layers[index]
        return attention.attend(index, qkv, layer.q_norm, layer.k_norm)

    def _finish_layer(
        self, index: int, attended: Tensor, residual: Tensor
    ) -> tuple[Tensor, Tensor]:  # each [tokens, hidden]
        """Go from attention's result through the MLP: what joins next, and the stream."""
        layer, ops, eps = self.layers[index], self.ops, self.config.norm_eps
        x = layer.out(attended)
        if layer.attention_post_norm is not None:
            x = ops.rms_norm(x, layer.attention_post_norm, eps)
        x, residual = layer.mlp(x, residual)
        if layer.mlp_post_norm is not None:
            x = ops.rms_norm(x, layer.mlp_post_norm, eps)
        return x, residual

    def logits(
        self,
        hidden: Tensor,  # [rows, hidden]
        out: Tensor | None = None,  # [rows, vocab]
    ) -> Tensor:  # [rows, vocab]
        """Score every token of the vocabulary; `out` takes the result."""
        if isinstance(self.head, PlainLinear):
            logits = self.head(hidden, out)
        else:
            logits = self.head(hidden)
            logits = logits if out is None else out.copy_(logits)
        cap = self.config.logit_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)
