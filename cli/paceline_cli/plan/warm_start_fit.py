"""Step times that another pod has fitted, from a file of the tuner's memory."""

import json
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from paceline_cli.errors import LocalError
from paceline_cli.plan.assumed_times import assumed_times
from paceline_engine.hardware.devices import Device, is_same_device
from paceline_engine.hardware.model_size import ModelSize
from paceline_tuner.telemetry import ModelFit
from paceline_tuner.warm_start_entry import WarmStartEntry
from paceline_tuner.warm_start_json import decode

_RANKS = "tensor_parallel_size="  # of the engine's features
_SAME_WEIGHTS = 0.01  # --params is a round number


class RecallError(LocalError):
    """The file is no memory, or holds nothing of this model on this device."""


def recall(path: Path, device: Device, size: ModelSize, *, ranks: int = 1) -> ModelFit:
    """Read the newest fit of such a whole model on so many such devices. Raises RecallError."""
    book, problems = decode(_document(path))
    entries = [entry for entry in book.entries if _fits(entry, device, size, ranks)]
    if not entries:
        on = device.name if ranks == 1 else f"{ranks} x {device.name}"
        held = ", ".join(sorted({f"{e.key.model} on {e.key.device}" for e in book.entries}))
        why = f"; {problems[0]}" if problems else ""
        raise RecallError(
            f"--memory {path}: nothing is remembered of {size.weight_bytes:,} bytes of weights"
            f" on {on}; it holds {held or 'nothing'}{why}"
        )
    newest = entries[-1]
    return structs.replace(
        assumed_times(device, size),
        theta=newest.theta,
        knee=newest.knee,
        correction=newest.correction,
        bin_tokens=newest.bin_tokens,
    )


def remembers(path: Path, device: Device, size: ModelSize, *, ranks: int = 1) -> bool:
    """Tell whether `recall` would find one. Raises RecallError where the file is no memory."""
    book, _ = decode(_document(path))
    return any(_fits(entry, device, size, ranks) for entry in book.entries)


def _document(path: Path) -> str:
    """The document itself, or that of a ConfigMap as kubectl gives it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise RecallError(f"--memory {path}: cannot be read: {problem}") from problem
    try:
        outer: Any = yaml.safe_load(text)  # JSON is YAML too
    except yaml.YAMLError as problem:
        raise RecallError(f"--memory {path}: neither JSON nor YAML: {problem}") from problem
    data = outer.get("data") if isinstance(outer, dict) else None
    if isinstance(data, dict):
        texts = [value for value in data.values() if isinstance(value, str)]
        if len(texts) != 1:
            raise RecallError(f"--memory {path}: a ConfigMap with one document, holds {len(texts)}")
        return texts[0]
    return json.dumps(outer, default=str)


def _fits(entry: WarmStartEntry, device: Device, size: ModelSize, ranks: int) -> bool:
    away = abs(entry.key.weight_bytes - size.weight_bytes)
    shared = [name for name in entry.key.features if name.startswith(_RANKS)]
    if shared != ([f"{_RANKS}{ranks}"] if ranks > 1 else []):
        return False
    return is_same_device(entry.key.device, device) and away <= _SAME_WEIGHTS * size.weight_bytes
