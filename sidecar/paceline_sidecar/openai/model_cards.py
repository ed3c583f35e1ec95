"""The answers of `/v1/models`."""

from typing import Literal

import msgspec


class ModelCard(msgspec.Struct, frozen=True):
    """The served model, or one of its LoRA adapters."""

    id: str
    created: int
    root: str
    """Where the weights were taken from."""
    max_model_len: int | None
    """Tokens of its context; vLLM's name."""
    parent: str | msgspec.UnsetType = msgspec.UNSET
    """The model that an adapter belongs to."""
    object: Literal["model"] = "model"
    owned_by: Literal["paceline"] = "paceline"


class ModelCards(msgspec.Struct, frozen=True):
    """The list of what may be named as `model`."""

    data: list[ModelCard]
    object: Literal["list"] = "list"
