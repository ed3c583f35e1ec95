"""Reads a `config.json` into sizes and switches: what the name of each family stands for.

llama    nothing beside sizes
mistral  a window over all layers, where the config has one
qwen2    biases on q, k and v; a window over the last layers, where it is switched on
qwen3    each head of q and k normed; the window as Qwen2
gemma2   norms after attention and MLP too, weights of norms counted from 1, scaled embeddings,
         tanh-GELU, scores and logits within soft caps, a window over every second layer
gemma3   as Gemma 2, heads normed instead of capped; windowed layers rotate by a base of their own
"""

from collections.abc import Callable, Mapping
from typing import Any

from paceline_engine.core.model_config import Activation, ModelConfig, Rope
from paceline_engine.errors import CorruptModel, UnsupportedModel

Config = Mapping[str, Any]
Switches = dict[str, Any]

# Fields that the hub's configs leave out, as the classes of transformers have them.
_GEMMA = {
    "vocab_size": 256_000,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
_GEMMA2 = _GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3 = _GEMMA | {
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131_072,
    "rope_theta": 1_000_000.0,
}
_ACTIVATIONS: dict[object, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_GEMMA3_WINDOW_THETA = 10_000.0
_GEMMA3_PATTERN = 6
_GEMMA2_PATTERN = 2
_MAX_VALUES = {"num_hidden_layers": 4096, "num_attention_heads": 65_536}
"""Larger values are no real model, and lists so long exhaust memory; other fields: 31 bits."""
_MAX_QUOTED = 100


def from_hugging_face(config: Config) -> ModelConfig:
    """Read the contents of a `config.json`. Raises CorruptModel and UnsupportedModel."""
    name = config.get("model_type")
    if name == "gemma3" and "text_config" in config:
        config = config["text_config"]  # text and images: the text's part is a config of its own
    family = "gemma3" if name == "gemma3_text" else name
    if not isinstance(family, str) or family not in _FAMILIES:
        raise UnsupportedModel(
            f"The model's architecture is {family!r}; the engine runs {', '.join(_FAMILIES)}."
        )
    defaults, switches = _FAMILIES[family]
    config = {**defaults, **config}
    _refuse_variants(config)
    num_q_heads = _count(config, "num_attention_heads")
    hidden_size = _count(config, "hidden_size")
    fields: Switches = {
        "num_layers": _count(config, "num_hidden_layers"),
        "hidden_size": hidden_size,
        "intermediate_size": _count(config, "intermediate_size"),
        "num_q_heads": num_q_heads,
        "num_kv_heads": _count(config, "num_key_value_heads", num_q_heads),
        "head_size": _count(config, "head_dim", hidden_size // num_q_heads),
        "vocab_size": _count(config, "vocab_size"),
        "max_len": _count(config, "max_position_embeddings"),
        "norm_eps": float(config.get("rms_norm_eps", 1e-6)),
        "rope": _rope(config),
        "tied_head": bool(config.get("tie_word_embeddings", False)),
        "activation": _activation(config),
    }
    return ModelConfig(family=family, **{**fields, **switches(config)})


def _llama(_config: Config) -> Switches:
    return {}


def _mistral(config: Config) -> Switches:
    every = ["sliding_attention"] * _count(config, "num_hidden_layers")
    return {"windows": _windows(config, every)}


def _qwen2(config: Config) -> Switches:
    return {"qkv_bias": True, "windows": _qwen_windows(config)}


def _qwen3(config: Config) -> Switches:
    return {"qk_norm": True, "windows": _qwen_windows(config)}


def _gemma(config: Config) -> Switches:
    return {
        "attention_scale": float(config["query_pre_attn_scalar"]) ** -0.5,
        "attention_softcap": config.get("attn_logit_softcapping"),
        "logit_softcap": config.get("final_logit_softcapping"),
        "post_norms": True,
        "norm_offset": 1.0,
        "embedding_scale": float(config["hidden_size"]) ** 0.5,
    }


def _gemma2(config: Config) -> Switches:
    return _gemma(config) | {"windows": _windows(config, _every(config, _GEMMA2_PATTERN))}


def _gemma3(config: Config) -> Switches:
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel(
            "The model's config has use_bidirectional_attention; the engine runs causal models."
        )
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    return _gemma(config) | {
        "qk_norm": True,
        "windows": _windows(config, _every(config, int(pattern or _GEMMA3_PATTERN))),
        "window_rope": _gemma3_window_rope(config),
    }


_FAMILIES: dict[str, tuple[Config, Callable[[Config], Switches]]] = {
    "llama": ({}, _llama),
    "mistral": ({"sliding_window": 4096}, _mistral),
    "qwen2": ({}, _qwen2),
    "qwen3": ({}, _qwen3),
    "gemma2": (_GEMMA2, _gemma2),
    "gemma3": (_GEMMA3, _gemma3),
}


def _every(config: Config, pattern: int) -> list[str]:
    """All layers have a window but each `pattern`-th."""
    return [
        "sliding_attention" if (index + 1) % pattern else "full_attention"
        for index in range(_count(config, "num_hidden_layers"))
    ]


def _qwen_windows(config: Config) -> tuple[int | None, ...]:
    if not config.get("use_sliding_window"):
        return ()
    first = int(config.get("max_window_layers", 28))
    layers = range(_count(config, "num_hidden_layers"))
    return _windows(
        config, ["sliding_attention" if i >= first else "full_attention" for i in layers]
    )


def _windows(config: Config, kinds: list[str]) -> tuple[int | None, ...]:
    """Per layer; `layer_types` wins over the family's rule. A window of a whole context is none."""
    if config.get("sliding_window") is None:
        return ()
    window = _count(config, "sliding_window")
    if window >= _count(config, "max_position_embeddings"):
        return ()
    of_kind = {"sliding_attention": window, "full_attention": None}
    kinds = config.get("layer_types") or kinds
    unknown = sorted(set(kinds) - set(of_kind))
    if unknown:
        raise UnsupportedModel(
            f"The model's config has layer_types {', '.join(unknown)}; "
            f"the engine runs {', '.join(of_kind)}."
        )
    return tuple(of_kind[kind] for kind in kinds)


def _refuse_variants(config: Config) -> None:
    """Refuse switches of the same families that would give wrong output if they were ignored."""
    for field in ("mlp_bias", "attention_bias", "quantization_config"):
        if config.get(field):
            raise UnsupportedModel(
                f"The model's config has {field}={config[field]!r}; the engine runs none."
            )


def _activation(config: Config) -> Activation:
    field = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    name = config.get(field, "silu")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(
            f"The model's config has {field}={name!r}; "
            f"the engine runs {', '.join(map(str, _ACTIVATIONS))}."
        )
    return _ACTIVATIONS[name]


def _count(config: Config, field: str, default: int | None = None) -> int:
    value = config.get(field) or default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CorruptModel(
            f"The model's config.json: {field} must be a positive integer, got {_short(value)}."
        )
    if value > (most := _MAX_VALUES.get(field, 2**31 - 1)):
        raise CorruptModel(
            f"The model's config.json: {field} is at most {most:,}, got {_short(value)}."
        )
    return value


def _short(value: object) -> str:
    """Quote at most a line of a value that may be anything."""
    return repr(value)[:_MAX_QUOTED]


def _rope(config: Config) -> Rope:
    """`rope_parameters` holds theta and scaling, per kind of layer where they differ.

    Before it there were two fields.
    """
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    of_full: Config = scaling.get("full_attention") or scaling
    return _scaled_rope(of_full, float(config.get("rope_theta", 10_000.0)))


def _gemma3_window_rope(config: Config) -> Rope:
    of_kind = config.get("rope_parameters") or {}
    theta = float(config.get("rope_local_base_freq", _GEMMA3_WINDOW_THETA))
    return _scaled_rope(of_kind.get("sliding_attention") or {}, theta)


def _scaled_rope(scaling: Config, theta: float) -> Rope:
    theta = float(scaling.get("rope_theta", theta))
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, "linear", factor=float(scaling["factor"]))
    if kind == "llama3":
        return Rope(
            theta,
            "llama3",
            factor=float(scaling["factor"]),
            low_freq_factor=float(scaling["low_freq_factor"]),
            high_freq_factor=float(scaling["high_freq_factor"]),
            original_max_len=int(scaling["original_max_position_embeddings"]),
        )
    raise UnsupportedModel(
        f"The model's rope scaling is {kind!r}; the engine runs default, linear and llama3."
    )
