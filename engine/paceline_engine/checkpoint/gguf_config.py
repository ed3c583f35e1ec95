"""Translates a GGUF file's metadata into the fields of `config.json`, which `families` checks."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import CorruptModel

# Gemma's files do not say what scores are scaled by. It is the head's size, except in the largest
# model of each family, which llama.cpp tells by its layers: there it is hidden size over heads.
_LARGEST_GEMMA_LAYERS = {"gemma2": 46, "gemma3": 62}


class GgufMetadata(Protocol):
    """The key-value part of a GGUF file."""

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the value of `key`, or `default`."""
        ...

    def __getitem__(self, key: str, /) -> Any:
        """Return what must be there."""
        ...


def read_config(
    metadata: GgufMetadata, *, has_head: bool, rope_divisors: Sequence[float] | None
) -> ModelConfig:
    """Return sizes and switches. `has_head`: the file holds an output head of its own.

    Raises CorruptModel and UnsupportedModel.
    """
    family = metadata["general.architecture"]
    # An unknown architecture has keys of its own: refuse it before any is missed.
    if family not in _EXTRAS:
        return from_hugging_face({"model_type": family})
    vocab_size = metadata.get(f"{family}.vocab_size") or len(metadata["tokenizer.ggml.tokens"])
    fields = {
        "model_type": family,
        "vocab_size": vocab_size,
        "head_dim": head_size(metadata),
        "rope_parameters": _rope(metadata, family),
        # The converter writes a head only where it is not the embedding.
        "tie_word_embeddings": not has_head,
        **{word: metadata[f"{family}.{key}"] for word, key in _SIZES.items()},
    }
    config = from_hugging_face(fields | _EXTRAS[family](metadata, fields))
    if rope_divisors is None:
        return config
    rope = dataclasses.replace(config.rope, divisors=tuple(rope_divisors))
    return dataclasses.replace(config, rope=rope)


def head_size(metadata: GgufMetadata) -> int:
    """Return the width of one head."""
    family = metadata["general.architecture"]
    size = metadata.get(f"{family}.attention.key_length")
    if size is None:
        heads = metadata[f"{family}.attention.head_count"]
        size = metadata[f"{family}.embedding_length"] // heads
    return int(size)


_SIZES = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
}


def _rope(metadata: GgufMetadata, family: str) -> dict[str, Any]:
    scaling = metadata.get(f"{family}.rope.scaling.type", "none")
    return {
        "rope_theta": metadata.get(f"{family}.rope.freq_base", 10_000.0),
        "rope_type": "default" if scaling == "none" else scaling,
        "factor": metadata.get(f"{family}.rope.scaling.factor", 1.0),
    }


def _llama(metadata: GgufMetadata, fields: dict[str, Any]) -> dict[str, Any]:
    """GGUF stores Mistral models as `llama`: keep the sliding window if there is one."""
    window = metadata.get("llama.attention.sliding_window")
    if window is None:
        return {}
    return {"model_type": "mistral", "sliding_window": min(window, _context(fields))}


def _nothing(_metadata: GgufMetadata, _fields: dict[str, Any]) -> dict[str, Any]:
    return {}


def _gemma(metadata: GgufMetadata, fields: dict[str, Any]) -> dict[str, Any]:
    family, hidden = fields["model_type"], fields["hidden_size"]
    is_largest = fields["num_hidden_layers"] == _LARGEST_GEMMA_LAYERS[family]
    heads = fields["num_attention_heads"]
    return {
        "query_pre_attn_scalar": hidden // heads if is_largest else fields["head_dim"],
        "sliding_window": metadata.get(f"{family}.attention.sliding_window", _context(fields)),
    }


def _gemma2(metadata: GgufMetadata, fields: dict[str, Any]) -> dict[str, Any]:
    caps = {
        "attn_logit_softcapping": metadata.get("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.get("gemma2.final_logit_softcapping", 30.0),
    }
    return _gemma(metadata, fields) | caps


def _gemma3(metadata: GgufMetadata, fields: dict[str, Any]) -> dict[str, Any]:
    window_rope = {"rope_theta": metadata.get("gemma3.rope.freq_base_swa", 10_000.0)}
    return _gemma(metadata, fields) | {
        "sliding_window_pattern": _pattern(metadata.get("gemma3.attention.sliding_window_pattern")),
        "final_logit_softcapping": metadata.get("gemma3.final_logit_softcapping"),
        "rope_parameters": {
            "full_attention": fields["rope_parameters"],
            "sliding_attention": window_rope,
        },
    }


def _pattern(value: Any) -> int | None:
    """Return the period of layers without a window; None where the file leaves it to the family."""
    if value is None or isinstance(value, int):
        return value
    raise CorruptModel(
        "The GGUF file's gemma3.attention.sliding_window_pattern must be a number, "
        f"got {type(value).__name__}."
    )


def _context(fields: dict[str, Any]) -> int:
    return int(fields["max_position_embeddings"])


_EXTRAS = {
    "llama": _llama,
    "qwen2": _nothing,
    "qwen3": _nothing,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
