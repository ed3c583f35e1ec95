"""Is a back end right? Its output beside our kernel's, on prompts of every kind that it serves.

Nobody need have run a back end before on such a GPU: one that differs, gives NaN or raises is not
used.
"""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from paceline_engine.attention.prefill.attention import (
    Chunk,
    PrefillAttention,
    RefusedError,
    Scores,
)
from paceline_engine.attention.prefill.scratch import Scratch, Step
from paceline_engine.errors import BadSettings

TOLERANCE = 4
"""Roundings of the type by which a row of the output may differ, as a share of its length.

Both round the weights to the type, and the output: half of one each. Of 300 keys with equal
weights a missing one changes a row by a seventeenth, which is 7 roundings of bfloat16.
"""
_COARSEST = 2.0**-10
"""A rounding of TF32, which tensor cores may take in the place of float32."""
_PADDING = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a back end is left out."""

    reason: str
    level: int = logging.WARNING
    """INFO where it said so itself."""


def trial_steps(
    scratch: Scratch, other: PrefillAttention, windows: Iterable[int | None]
) -> Iterator[Step]:
    """Make the steps that a back end must get right, of the kinds that it serves.

    Ragged, alone, many, with padding; chunks behind a context; and beyond each window, which does
    nothing before.
    """
    edge = scratch.block_size
    kinds = [
        _chunks((1, 1), (15, 15), (edge, edge), (257, 257), (100, 100)),
        _chunks((300, 300)),
        _chunks((1, 40), (17, 17 + 3 * edge), (130, 300), (2, 2 * edge)),
        _chunks((64, 700)),
        _chunks(*((5, 5 + edge * place) for place in range(20))),
    ]
    for window in filter(None, windows):
        kinds.append(_chunks((24, window + 90), (130, window + 130), (40, max(40, window // 2))))
        kinds.append(_chunks((window + 90, window + 90), (30, 30)))
    for kind in kinds:
        chunks = tuple(_at_most(chunk, scratch.num_tokens) for chunk in kind)
        if other.serves(chunks):
            yield scratch.step(chunks, _PADDING)


def fault_of(
    other: PrefillAttention, ours: PrefillAttention, steps: Iterable[Step], layer: Scores
) -> Fault | None:
    """Compare them on each step; None where they agree.

    Raises BadSettings where the back end has left a GPU behind that nobody can use any more.
    """
    for step in steps:
        try:
            differs_by = _difference(other, ours, step, layer)
        except RefusedError as refusal:
            return Fault(str(refusal), logging.INFO)
        except Exception as error:  # noqa: BLE001 - whatever it is, ours serves
            _require_alive(step.q.device, other, error)
            first_line = str(error).partition("\n")[0]
            return Fault(f"on {_words(step)} it raised {type(error).__name__}: {first_line}")
        limit = tolerance(step.q.dtype)
        if not differs_by <= limit:  # NaN as well
            return Fault(
                f"on {_words(step)} a row differs from our kernel's by {differs_by:.2g} of its "
                f"length, where {limit:.2g} is rounding"
            )
    return None


def tolerance(dtype: torch.dtype) -> float:
    """Share of a row's length by which two right back ends may differ."""
    return TOLERANCE * max(torch.finfo(dtype).eps, _COARSEST)


def _difference(
    other: PrefillAttention, ours: PrefillAttention, step: Step, layer: Scores
) -> float:
    """Of the row that differs most; NaN where anything is none, or padding is not zero."""
    seen = other(step.q, step.cache, step.prompts, layer)
    wanted = ours(step.q, step.cache, step.prompts, layer)
    if seen.shape != wanted.shape or seen.dtype != wanted.dtype:
        raise ValueError(
            f"its output must be {tuple(wanted.shape)} in {wanted.dtype}, "
            f"got {tuple(seen.shape)} in {seen.dtype}"
        )
    num_tokens = step.prompts.num_tokens
    rows = _rows_difference(seen[:num_tokens], wanted[:num_tokens])
    is_clean = bool((seen[num_tokens:] == 0).all())
    return float(rows.max()) if is_clean else float("nan")


def _rows_difference(seen: Tensor, wanted: Tensor) -> Tensor:  # [T, heads, size] -> [T, heads]
    exact = wanted.float()
    share: Tensor = vector_norm(seen.float() - exact, dim=-1) / vector_norm(exact, dim=-1)
    return share


def _require_alive(device: torch.device, other: PrefillAttention, error: Exception) -> None:
    """Refuse to go on where CUDA does not: after an illegal access nothing it says is true."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fatal:
        raise BadSettings(
            f"The prefill back end {other.name} left the GPU unusable while it was tried "
            f"({error}): PACELINE_ENGINE_PREFILL_ATTENTION=triton serves without it."
        ) from fatal


def _chunks(*sizes: tuple[int, int]) -> tuple[Chunk, ...]:
    return tuple(Chunk(*size) for size in sizes)


def _at_most(chunk: Chunk, num_tokens: int) -> Chunk:
    return Chunk(min(chunk.tokens, num_tokens), min(chunk.context, num_tokens))


def _words(step: Step) -> str:
    sizes = ", ".join(f"{tokens} of {context}" for tokens, context in step.prompts.chunks)
    return f"prompts of {sizes} tokens"
