"""Inputs for the kernels, ragged and poisoned, and how near to float64 each dtype must come."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from paceline_kernels.checks import Exponents
from paceline_kernels.fp8 import LARGEST, dequantize_heads, quantize_heads

FLOAT64 = torch.float64

# The interpreter computes bfloat16 wrongly and does not say so: only a GPU can test it.
DTYPES = (
    pytest.param(torch.float32, id="float32"),
    pytest.param(torch.float16, id="float16"),
    pytest.param(torch.bfloat16, id="bfloat16", marks=pytest.mark.gpu),
)

# A few units in the last place of each type: to skip one of some hundred terms shows in float32.
TOLERANCES = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def assert_near(seen: Tensor, wanted: Tensor) -> None:
    """Compare with a float64 result, as strictly as the dtype of `seen` allows; NaN never fits."""
    tolerance = TOLERANCES[seen.dtype]
    torch.testing.assert_close(seen.double(), wanted, rtol=tolerance, atol=tolerance)


def assert_within_ulps(
    seen: Tensor, wanted: Tensor, *, size: float | None = None, ulps: float = 2
) -> None:
    """Compare bfloat16 with a float64 result, in units of its last place; NaN never fits.

    The unit is that of the row's largest value, or of a `size`.
    """
    sizes = wanted.abs().amax(dim=-1, keepdim=True)
    if size is not None:
        sizes = torch.full_like(sizes, size)
    unit = 2.0 ** (sizes.clamp(min=2.0**-30).log2().floor() - 7)
    error = ((seen.double() - wanted).abs() / unit).nan_to_num(torch.inf)
    assert seen.dtype == torch.bfloat16
    assert seen.shape == wanted.shape
    assert float(error.max()) <= ulps, f"off by {float(error.max()):.2f} units"


def assert_codes_near(codes: Tensor, scales: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Compare rows in FP8 with float64: off by half of a code's last bit, and by the dtype's.

    Of 4 bits; below 2^-14 of the row's largest value, by as much as there.
    """
    largest = wanted.abs().amax(dim=1, keepdim=True)
    bound = torch.maximum(wanted.abs() / 16, largest * 2.0**-18.8)
    allowed = (1 + 1e-4) * bound + TOLERANCES[dtype] * wanted.abs() + 1e-12
    assert ((codes.double() * scales.double()[:, None] - wanted).abs() <= allowed).all()
    is_loud = largest[:, 0] > 0
    assert (codes.double().abs().amax(dim=1)[is_loud] == LARGEST).all()


def random_floats(*sizes: int, dtype: torch.dtype, device: str, seed: int = 0) -> Tensor:
    """Draw the same normal numbers for every dtype and device, then round them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(sizes, generator=generator, dtype=FLOAT64).to(dtype).to(device)


@dataclass(frozen=True, slots=True)
class Heads:
    """How a model cuts its attention."""

    num_q: int
    num_kv: int
    size: int
    block_size: int = 16
    has_norm: bool = False

    def __str__(self) -> str:
        """Name the case among a test's parameters."""
        norm = "-norm" if self.has_norm else ""
        return f"{self.num_q}q-{self.num_kv}kv-{self.size}-blocks{self.block_size}{norm}"


@dataclass(frozen=True, slots=True)
class PagedKV:
    """The KV of some sequences in shuffled blocks; NaN wherever no sequence has a token."""

    k_cache: Tensor
    v_cache: Tensor
    block_table: Tensor
    context_lens: Tensor
    exponents: Exponents = None
    """Where the caches hold codes of FP8."""

    def double(self) -> "PagedKV":
        """Give the same KV to a reference in float64."""
        if self.exponents is None:
            return replace(self, k_cache=self.k_cache.double(), v_cache=self.v_cache.double())
        k, v = (
            dequantize_heads(codes, exponents, FLOAT64)
            for codes, exponents in zip(self.caches, self.exponents, strict=True)
        )
        return replace(self, k_cache=k, v_cache=v, exponents=None)

    def fp8(self) -> "PagedKV":
        """The same in FP8: NaN is NaN still."""
        (k, k_exponents), (v, v_exponents) = (quantize_heads(cache) for cache in self.caches)
        return replace(self, k_cache=k, v_cache=v, exponents=(k_exponents, v_exponents))

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        """Both caches, in the order in which every op takes them."""
        return self.k_cache, self.v_cache


def a_paged_kv(lengths: Sequence[int], heads: Heads, *, dtype: torch.dtype, device: str) -> PagedKV:
    """Lay out sequences of these lengths; block 0 is all NaN and fills the tables' unused ends."""
    needed = [-(-length // heads.block_size) for length in lengths]
    num_blocks = 1 + sum(needed)
    shape = (num_blocks, 2, heads.block_size, heads.num_kv, heads.size)
    kv = random_floats(*shape, dtype=dtype, device=device)
    order = torch.randperm(num_blocks - 1, generator=torch.Generator().manual_seed(0))
    shuffled = iter((1 + order).tolist())
    table = torch.zeros(len(lengths), max([*needed, 1]) + 1, dtype=torch.int32)
    kv[0] = torch.nan
    for row, (length, count) in enumerate(zip(lengths, needed, strict=True)):
        table[row, :count] = torch.tensor([next(shuffled) for _ in range(count)])
        if rest := length % heads.block_size:
            kv[int(table[row, count - 1]), :, rest:] = torch.nan
    lens = torch.tensor(lengths, dtype=torch.int32, device=device)
    return PagedKV(kv[:, 0], kv[:, 1], table.to(device), lens)
