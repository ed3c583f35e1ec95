"""Makes a LoRA adapter of random weights for a tiny model, as PEFT saves it, and merges it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

EVERY_PRODUCT = tuple(f"self_attn.{part}_proj" for part in "qkvo") + tuple(
    f"mlp.{part}_proj" for part in ("gate", "up", "down")
)


def make_tiny_adapter(
    folder: Path,
    model: Any,
    *,
    seed: int,
    rank: int = 4,
    products: Sequence[str] = EVERY_PRODUCT,
    **config: Any,
) -> dict[str, torch.Tensor]:
    """Fill `folder`; what each weight of the model grows by once the adapter is merged."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(seed)
    settings = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 6,
        "bias": "none",
        "target_modules": [product.rpartition(".")[2] for product in products],
        **config,
    }
    scale = settings["lora_alpha"] / (rank**0.5 if settings.get("use_rslora") else rank)
    tensors: dict[str, torch.Tensor] = {}
    growth: dict[str, torch.Tensor] = {}
    for name, weight in model.state_dict().items():
        if not any(name.endswith(f"{product}.weight") for product in products):
            continue
        down = torch.randn(rank, weight.shape[1], generator=generator) * 0.15
        up = torch.randn(weight.shape[0], rank, generator=generator) * 0.15
        stem = f"base_model.model.{name.removesuffix('.weight')}"
        tensors |= {f"{stem}.lora_A.weight": down, f"{stem}.lora_B.weight": up}
        growth[name] = scale * up @ down
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    save_file(tensors, folder / "adapter_model.safetensors")
    return growth
