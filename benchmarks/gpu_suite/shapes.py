"""Models of true sizes and random weights, loaded as the engine loads any other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gpu_suite.machine import Machine
from paceline_engine.checkpoint.checkpoint import Checkpoint
from paceline_engine.checkpoint.families import from_hugging_face
from paceline_engine.checkpoint.tokenizer import NO_TOKENIZER
from paceline_engine.checkpoint.uri import Located
from paceline_engine.core.model_config import ModelConfig
from paceline_engine.hardware.cores_reader import read_share
from paceline_engine.loading.dtype import DtypeChoice
from paceline_engine.loading.load import LoadedModel, load_checkpoint
from paceline_engine.model.group import Group
from paceline_engine.settings import Settings

_SIZE_FIELDS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
)


def _sizes(*sizes: int) -> dict[str, int]:
    return dict(zip(_SIZE_FIELDS, sizes, strict=True))


def _config(family: str, sizes: dict[str, int], *, tied: bool, theta: float) -> dict[str, Any]:
    return {
        "model_type": family,
        **sizes,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "tie_word_embeddings": tied,
    }


# The sizes of the checkpoints' own config.json; ends of sequence are ignored.
CONFIGS: Mapping[str, dict[str, Any]] = MappingProxyType(
    {
        "qwen2.5-0.5b": _config(
            "qwen2", _sizes(896, 4864, 24, 14, 2, 64, 151_936), tied=True, theta=1e6
        ),
        "qwen3-0.6b": _config(
            "qwen3", _sizes(1024, 3072, 28, 16, 8, 128, 151_936), tied=True, theta=1e6
        ),
        "llama-3.2-1b": _config(
            "llama", _sizes(2048, 8192, 16, 32, 8, 64, 128_256), tied=True, theta=5e5
        ),
        "qwen3-4b": _config(
            "qwen3", _sizes(2560, 9728, 36, 32, 8, 128, 151_936), tied=True, theta=1e6
        ),
        "llama-3.1-8b": _config(
            "llama", _sizes(4096, 14336, 32, 32, 8, 128, 128_256), tied=False, theta=5e5
        ),
    }
)


_ARCHITECTURES = {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


def published(name: str, machine: Machine) -> dict[str, Any]:
    """Give a model's `config.json` as a checkpoint's folder holds it, for engines that read one."""
    config = config_of(name, machine)
    return {
        **config,
        "architectures": [_ARCHITECTURES.get(config["model_type"], "LlamaForCausalLM")],
        "dtype": str(machine.dtype).removeprefix("torch."),
        "hidden_act": "silu",
        "rope_theta": config["rope_parameters"]["rope_theta"],
    }


def config_of(name: str, machine: Machine) -> dict[str, Any]:
    """Give a model's `config.json`; in a dry run one of its family that a CPU runs at once."""
    config = CONFIGS[name]
    return {**config, **_sizes(64, 96, 2, 2, 1, 32, 300)} if machine.is_dry else config


@dataclass(frozen=True, slots=True)
class RandomTensors:
    """A checkpoint's tensors, drawn where they are asked for. Implements `TensorSource`."""

    config: ModelConfig
    device: str
    dtype: torch.dtype
    origin: str = "random weights"

    def read(self, name: str) -> Tensor:
        """Draw a tensor: norms around 1, the rest as a model is initialised."""
        place, _, kind = name.rpartition(".")
        shape = self._shape(place.rpartition(".")[2])
        if kind == "bias":
            shape = shape[:1]
        fresh = torch.empty(shape, dtype=self.dtype, device=self.device)
        return fresh.normal_(mean=1.0 if "norm" in name else 0.0, std=0.02)

    def _shape(self, part: str) -> tuple[int, ...]:
        config = self.config
        hidden, mlp, size = config.hidden_size, config.intermediate_size, config.head_size
        q_size, kv_size = config.num_q_heads * size, config.num_kv_heads * size
        shapes: dict[str, tuple[int, ...]] = {
            "embed_tokens": (config.vocab_size, hidden),
            "lm_head": (config.vocab_size, hidden),
            "q_proj": (q_size, hidden),
            "k_proj": (kv_size, hidden),
            "v_proj": (kv_size, hidden),
            "o_proj": (hidden, q_size),
            "gate_proj": (mlp, hidden),
            "up_proj": (mlp, hidden),
            "down_proj": (hidden, mlp),
            "q_norm": (size,),
            "k_norm": (size,),
        }
        return shapes.get(part, (hidden,))


def _dtype(machine: Machine) -> DtypeChoice:
    """Name the machine's type as the engine does."""
    is_float32 = machine.dtype == torch.float32
    return DtypeChoice("float32" if is_float32 else "bfloat16", "as the machine's tensors are")


def load(name: str, machine: Machine, **settings: Any) -> LoadedModel:
    """Load a model, warmed up, with the memory of its cache."""
    chosen = {"device": machine.device, "max_model_len": 4096, **settings}
    if machine.is_dry:
        chosen |= {"kv_cache_bytes": 1 << 23, "threads": 1, "max_batch_size": 8}
        chosen |= {"max_model_len": 128, "max_token_budget": 64}
    config = from_hugging_face(config_of(name, machine))
    tensors = RandomTensors(config, machine.device, machine.dtype)
    checkpoint = Checkpoint(config, tensors, lambda: NO_TOKENIZER, None, ())
    located = Located(name, Path(), revision="")
    return load_checkpoint(
        Settings.model_validate(chosen),
        located,
        checkpoint,
        Group(),
        lambda *_: None,
        share=read_share(),
        dtype=_dtype(machine),
    )
