"""The form that is assumed of a model whose parameters alone are known, and its size by that.

A dense decoder has about 12 * layers * hidden^2 weights in its layers' products, and the common
ones are some 128 times as wide as they are deep; embedding and head have 2 * vocabulary * hidden.
With the largest of the common vocabularies that gives a width, and so how many of the parameters
embedding and head may be: rather too many than too few.
"""

from dataclasses import dataclass
from typing import Final

from paceline_engine.hardware.model_size import ModelSize, Precision, weight_bytes

_PER_SQUARE: Final = 12
_WIDTH_BY_DEPTH: Final = 128
_VOCABULARY: Final = 152_064
_WIDEST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Form:
    """The shape of a decoder, as far as its size in memory depends on it."""

    hidden_size: int
    num_layers: int
    num_ends: int
    """Parameters of embedding and head: whole in every rank, and never quantised."""
    is_told: bool = False
    """`num_ends` was given, not assumed."""


def assumed_form(params: int, num_ends: int | None = None) -> Form:
    """Take the usual form for so many parameters, of which `num_ends` are embedding and head."""
    low, high = 1, _WIDEST
    while low < high:
        middle = (low + high) // 2
        if _parameters(middle) < params:
            low = middle + 1
        else:
            high = middle
    layers = max(1, round(low / _WIDTH_BY_DEPTH))
    ends = min(2 * _VOCABULARY * low, params) if num_ends is None else num_ends
    return Form(low, layers, ends, is_told=num_ends is not None)


def of_parameters(
    params: int, kv_bytes: int, precision: Precision, form: Form, *, ranks: int = 1
) -> ModelSize:
    """The size of one rank's part; `kv_bytes` is what a token of the whole model takes."""
    products = (params - form.num_ends) // ranks
    parameters = products + form.num_ends
    outputs = products // form.hidden_size
    num_bytes, arithmetic = weight_bytes(parameters, products, outputs, precision)
    if not form.is_told and (precision.quantization or ranks > 1):
        arithmetic += " (embedding and head assumed)"
    return ModelSize(
        num_parameters=parameters,
        weight_bytes=num_bytes,
        kv_bytes_per_token=-(-kv_bytes // ranks),
        precision=precision,
        kv_arithmetic="--kv-bytes" if ranks == 1 else f"--kv-bytes / {ranks} ranks",
        weight_arithmetic=arithmetic,
        hidden_size=form.hidden_size,
        num_layers=form.num_layers,
    )


def _parameters(hidden: int) -> float:
    return _PER_SQUARE * hidden**3 / _WIDTH_BY_DEPTH + 2 * _VOCABULARY * hidden
