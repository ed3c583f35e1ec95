"""Tries whether SDPA is right: its output is compared with our kernel's.

Which implementation torch takes depends on the GPU, the type and torch's version. One that differs,
gives NaN or raises is not used.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vector_norm

from paceline_engine.attention.prefill.prompts import PrefillAttention, ScoreRules
from paceline_engine.attention.prefill.sdpa import NoFastAttentionError
from paceline_engine.attention.prefill.trial_steps import TrialStep
from paceline_engine.errors import BadSettings

TOLERANCE = 4
"""How many roundings of the dtype a row of the output may differ by, relative to its norm.

Both round the weights to the type, and the output: half a rounding each. Where 300 keys have equal
weights, a missing one changes a row by a seventeenth, which is 7 roundings of bfloat16.
"""
_COARSEST = 2.0**-10
"""A rounding of TF32, which tensor cores may take in the place of float32."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why SDPA is not used."""

    reason: str
    level: int = logging.WARNING
    """The log level: INFO where torch itself reports that it has no fast attention."""


def fault_of(
    sdpa: PrefillAttention, ours: PrefillAttention, steps: Iterable[TrialStep], rules: ScoreRules
) -> Fault | None:
    """Compare the two on each step; return None where they agree.

    Raises BadSettings where SDPA has left a GPU behind that nobody can use any more.
    """
    for step in steps:
        try:
            differs_by = _difference(sdpa, ours, step, rules)
        except NoFastAttentionError as refusal:
            return Fault(str(refusal), logging.INFO)
        except Exception as error:  # noqa: BLE001 - whatever it is, ours serves
            _require_alive(step.q.device, error)
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
    """Return how far two correct outputs may differ in a row, relative to its norm."""
    return TOLERANCE * max(torch.finfo(dtype).eps, _COARSEST)


def _difference(
    sdpa: PrefillAttention, ours: PrefillAttention, step: TrialStep, rules: ScoreRules
) -> float:
    """Return the largest difference of a row; NaN if an output has NaN or padding is not zero."""
    seen = sdpa(step.q, step.cache, step.prompts, rules)
    wanted = ours(step.q, step.cache, step.prompts, rules)
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


def _require_alive(device: torch.device, error: Exception) -> None:
    """Raise BadSettings where CUDA no longer works, as after an illegal memory access."""
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fatal:
        raise BadSettings(
            f"Torch's attention left the GPU unusable while it was tried ({error}): "
            "PACELINE_ENGINE_PREFILL_ATTENTION=triton serves without it."
        ) from fatal


def _words(step: TrialStep) -> str:
    chunks = step.prompts.chunks
    lengths = ", ".join(str(chunk.tokens) for chunk in chunks)
    if all(chunk.is_whole for chunk in chunks):
        return f"prompts of {lengths} tokens"
    contexts = ", ".join(str(chunk.context) for chunk in chunks)
    return f"chunks of {lengths} tokens at the end of {contexts}"
