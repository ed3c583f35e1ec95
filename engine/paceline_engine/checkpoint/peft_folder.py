"""A LoRA adapter as PEFT saves it: `adapter_config.json` and `adapter_model.safetensors`.

PEFT calls the two matrices of each product A [rank, in] and B [out, rank]; the product's output
grows by `x A^T B^T * scale`, where scale is alpha / rank, or alpha / sqrt(rank) with rsLoRA.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from paceline_engine.errors import AdapterRefused

_NAME = re.compile(r"base_model\.model\.(?:language_model\.)?(model\..+)\.lora_([AB])\.weight")


@dataclass(frozen=True, slots=True)
class LoraPair:
    """The two matrices that add to one product, the scale already in `up`."""

    down: Tensor  # [rank, in]
    up: Tensor  # [out, rank]


def read_peft_folder(folder: Path) -> dict[str, LoraPair]:
    """Read an adapter by the names of the weights that it adds to. Raises AdapterRefused."""
    config = _read_config(folder)
    _refuse_variants(config)
    matrices = _read_matrices(folder)
    pairs = {}
    for name in {name for name, _ in matrices}:
        down, up = matrices.get((name, "A")), matrices.get((name, "B"))
        if down is None or up is None or down.shape[0] != up.shape[1]:
            raise AdapterRefused(
                f"{folder}: {name} must have lora_A [rank, in] and lora_B [out, rank] of one rank, "
                f"got {_shape(down)} and {_shape(up)}."
            )
        pairs[name] = LoraPair(down, up * _scale(folder, config, down.shape[0]))
    if not pairs:
        raise AdapterRefused(f"{folder} holds no LoRA weights.")
    return pairs


def _read_config(folder: Path) -> Mapping[str, Any]:
    path = folder / "adapter_config.json"
    if not path.is_file():
        raise AdapterRefused(f"{folder} has no adapter_config.json: wanted is a folder of PEFT.")
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise AdapterRefused(f"{path} is no readable JSON: {error}.") from error
    if not isinstance(config, dict):
        raise AdapterRefused(f"{path} must hold a JSON object, got {type(config).__name__}.")
    return config


def _refuse_variants(config: Mapping[str, Any]) -> None:
    """Refuse what would give wrong output if it were ignored."""
    plain = {
        "peft_type": "LORA",
        "bias": "none",
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
        "alpha_pattern": {},
    }
    for field, wanted in plain.items():
        value = config.get(field, wanted)
        if value != wanted and (value or wanted):
            raise AdapterRefused(
                f"adapter_config.json has {field}={value!r}; the engine runs only {wanted!r}."
            )


def _read_matrices(folder: Path) -> dict[tuple[str, str], Tensor]:
    path = folder / "adapter_model.safetensors"
    if not path.is_file():
        raise AdapterRefused(f"{folder} has no adapter_model.safetensors.")
    matrices: dict[tuple[str, str], Tensor] = {}
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - a file of safetensors is no dict
                match = _NAME.fullmatch(name)
                if match is None:
                    raise AdapterRefused(
                        f"{path} has the tensor {name}; the engine adds to the products of layers "
                        "only, by base_model.model.model.<...>.lora_A.weight and lora_B.weight."
                    )
                matrices[match[1], match[2]] = file.get_tensor(name).float()
    except (SafetensorError, OSError) as error:
        raise AdapterRefused(f"{path} is no whole safetensors file: {error}.") from error
    return matrices


def _scale(folder: Path, config: Mapping[str, Any], rank: int) -> float:
    alpha = config.get("lora_alpha")
    if not isinstance(alpha, int | float) or not math.isfinite(alpha):
        raise AdapterRefused(
            f"{folder}: adapter_config.json: lora_alpha must be a number, got {alpha!r}."
        )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _shape(matrix: Tensor | None) -> str:
    return "none" if matrix is None else str(list(matrix.shape))
