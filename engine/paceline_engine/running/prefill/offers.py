"""The back ends that are not ours, by name: each is made where its package is installed."""

from collections.abc import Callable, Mapping
from functools import partial

from paceline_engine.running.prefill import flashinfer_paged
from paceline_engine.running.prefill.attention import PrefillAttention
from paceline_engine.running.prefill.sdpa import SdpaPrefill

Offer = Callable[[], PrefillAttention]
"""Makes a back end; raises RefusedError where it cannot serve here, with the reason."""
Offers = Mapping[str, Offer]


def offers(*, compiles: bool) -> Offers:
    """Those that were written, whatever is installed; the first of equals is preferred.

    `compiles`: one that brings no kernels may have them compiled now, which can take minutes.
    """
    return {
        "sdpa": SdpaPrefill,
        "flashinfer": partial(flashinfer_paged.flashinfer_prefill, compiles=compiles),
    }


def set_aside_bytes(setting: str) -> int:
    """What a back end that may be chosen keeps of a GPU for itself, for each model."""
    is_asked_for = setting in {"auto", "flashinfer"}
    return flashinfer_paged.KEPT_BYTES if is_asked_for and flashinfer_paged.is_installed() else 0
