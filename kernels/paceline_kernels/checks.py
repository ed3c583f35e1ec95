"""Checks of a launcher's tensors: with a wrong one a kernel would read out of bounds."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from paceline_kernels.fp8 import CODES, EXPONENTS

MIN_CAPABILITY = (8, 0)
"""Compute capability that the kernels need: the first with bfloat16 and asynchronous copies."""
MAX_HEAD_SIZE = 256
MAX_VOCAB = 1 << 19
"""The largest vocabulary of the sampler: all groups of a row must fit into one tile."""
MAX_GROUP = 16
"""Query heads that share a KV head: the rows of a tile of decode."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
Exponents = tuple[Tensor, Tensor] | None
"""Exponents of keys and of values in FP8, each [blocks, block_size, num_kv_heads]; or None."""


def expect(
    name: str,
    tensor: Tensor,
    *,
    shape: Sequence[int | str],
    dtypes: Collection[torch.dtype],
    like: Tensor,
) -> None:
    """Raise ValueError unless the tensor is contiguous, of this shape and dtype, beside `like`.

    A string in `shape` names a dimension that may have any size.
    """
    sizes = tensor.shape
    fits = len(shape) == len(sizes)
    # No generator: the launchers of a layer ask some twenty times, and that was half of the cost.
    for asked, size in zip(shape, sizes, strict=False):
        if asked != size and not isinstance(asked, str):
            fits = False
            break
    is_near = tensor.device == like.device
    if fits and is_near and tensor.dtype in dtypes and tensor.is_contiguous():
        return
    names = " or ".join(dict.fromkeys(map(_short, dtypes)))
    wanted = f"contiguous {_dims(shape)} {names} on {like.device}"
    layout = "" if tensor.is_contiguous() else f" with strides {_dims(tensor.stride())}"
    seen = f"{_dims(tensor.shape)} {_short(tensor.dtype)} on {tensor.device}{layout}"
    raise ValueError(f"{name} must be {wanted}, got {seen}")


def expect_caches(
    k_cache: Tensor, v_cache: Tensor, exponents: Exponents = None, *, like: Tensor
) -> None:
    """Raise ValueError unless both caches are [blocks, block_size, num_kv_heads, head_size].

    Each block must be contiguous; blocks may lie apart, in both caches alike, as they do in one
    tensor of [blocks, 2, ...]. With exponents, the caches hold codes of FP8.
    """
    if k_cache.ndim != 4:  # noqa: PLR2004 - the four sizes that the docstring names
        raise ValueError(
            "k_cache must be [blocks, block_size, num_kv_heads, head_size], "
            f"got {_dims(k_cache.shape)}"
        )
    dtypes = (like.dtype,) if exponents is None else (CODES,)
    _, _, num_kv_heads, head_size = k_cache.shape
    strides = (num_kv_heads * head_size, head_size, 1)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if cache.shape != k_cache.shape:
            raise ValueError(
                f"{name} must be {_dims(k_cache.shape)} as k_cache, got {_dims(cache.shape)}"
            )
        if cache.stride(0) != k_cache.stride(0):
            raise ValueError(
                f"{name} must have block stride {k_cache.stride(0)} as k_cache, "
                f"got {cache.stride(0)}"
            )
        is_near = cache.device == like.device
        if cache.stride()[1:] != strides or cache.dtype not in dtypes or not is_near:
            expect(f"{name}[0]", cache[0], shape=k_cache.shape[1:], dtypes=dtypes, like=like)
    for name, each in zip(("k_exponents", "v_exponents"), exponents or (), strict=False):
        expect(name, each, shape=k_cache.shape[:3], dtypes=(EXPONENTS,), like=like)
    if k_cache.shape[-1] > MAX_HEAD_SIZE:
        raise ValueError(f"head_size must be at most {MAX_HEAD_SIZE}, got {k_cache.shape[-1]}")


def _dims(sizes: Sequence[int | str]) -> str:
    return f"[{', '.join(map(str, sizes))}]"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
