"""The back ends that are not ours, by name: each is made where its package is installed."""

from collections.abc import Callable, Mapping
from functools import partial

from paceline_engine.attention.prefill import cudnn_built, cudnn_paged, flashinfer_paged
from paceline_engine.attention.prefill.attention import PrefillAttention
from paceline_engine.attention.prefill.sdpa import SdpaPrefill

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
        "cudnn": cudnn_paged.cudnn_prefill,
    }


def set_aside_bytes(setting: str) -> int:
    """What a back end that may be chosen keeps of a GPU for itself, for each model."""
    kept_bytes = {
        "flashinfer": flashinfer_paged.KEPT_BYTES if flashinfer_paged.is_installed() else 0,
        "cudnn": cudnn_built.WORKSPACE_BYTES if cudnn_paged.is_installed() else 0,
    }
    return sum(kept_bytes.values()) if setting == "auto" else kept_bytes.get(setting, 0)
