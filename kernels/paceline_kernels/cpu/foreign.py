"""What the C functions are told: addresses of tensors that have been looked at."""

from ctypes import CDLL, c_int
from typing import Any

import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.fp8 import CODES, EXPONENTS


def function(library: CDLL, name: str, arguments: list[Any], result: Any = None) -> Any:
    """Type one of the functions whose last argument is the number of threads."""
    found = getattr(library, name)
    found.argtypes = [*arguments, c_int]
    found.restype = result
    return found


def address(tensor: Tensor | None) -> int | None:
    """Tell where the numbers are; a null pointer for none."""
    return None if tensor is None else tensor.data_ptr()


def addresses(exponents: Exponents) -> tuple[int | None, int | None]:
    """Tell where those of keys and of values are."""
    return (None, None) if exponents is None else (address(exponents[0]), address(exponents[1]))


def require(
    name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> None:
    """C believes what it is told: a wrong tensor would read or write foreign memory."""
    if tensor.shape != shape or tensor.dtype is not dtype or not tensor.is_contiguous():
        seen = f"{tuple(tensor.shape)} {tensor.dtype} with strides {tensor.stride()}"
        raise ValueError(f"{name} must be contiguous {tuple(shape)} {dtype}, got {seen}")


def require_caches(k_cache: Tensor, v_cache: Tensor, exponents: Exponents = None) -> None:
    """Look at a layer's keys and values: codes of FP8 where they have exponents."""
    dtype = torch.float32 if exponents is None else CODES
    require("k_cache", k_cache, k_cache.shape, dtype)
    require("v_cache", v_cache, k_cache.shape, dtype)
    for each in exponents or ():
        require("exponents", each, k_cache.shape[:3], EXPONENTS)
