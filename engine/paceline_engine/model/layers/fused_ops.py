"""Norms and gates fused with the quantisation that the product behind them asks for.

Only the product reads the rows that a norm or a gate writes. Where the product takes FP8, the op
quantises as well, and the rows never reach memory in their own type. Which it is, is decided once,
when the decoder is built. Adapters take rows: what they may add to is there in both forms, and a
step that has none takes codes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeGuard, TypeVar

from torch import Tensor

from paceline_engine.model.layers import fp8_rows
from paceline_engine.model.layers.fp8_rows import Fp8Rows
from paceline_engine.model.layers.gated_linear import GatedLinear
from paceline_engine.model.layers.linear import Linear
from paceline_engine.model.layers.lora_linear import LoraLinear
from paceline_engine.model.layers.quantized_linear import DynamicFp8Linear
from paceline_engine.model.sharding import SummedLinear

Taken = TypeVar("Taken")
Gated = TypeVar("Gated")
Rows = Tensor | Fp8Rows
AddNorm = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
"""`Ops.add_rms_norm`."""


class NormedLinear(Protocol):
    """A product, or an MLP, behind the norm of the residual stream."""

    @property
    def weight(self) -> Tensor:  # [hidden]
        """The norm's weight."""
        ...

    @property
    def product(self) -> Linear:
        """The product alone, for rows that are normed already."""
        ...

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Return `(product(rms_norm(x + residual)), x + residual)`."""
        ...


@dataclass(frozen=True, slots=True)
class Normed(Generic[Taken]):
    """Implements `NormedLinear` with a norm that writes what the product takes."""

    weight: Tensor  # [hidden]
    eps: float
    norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Taken, Tensor]]
    product: Callable[[Taken], Tensor]

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """See `NormedLinear`."""
        normed, residual = self.norm(x, residual, self.weight, self.eps)
        return self.product(normed), residual


@dataclass(frozen=True, slots=True)
class Mlp(Generic[Taken, Gated]):
    """Gate and up, multiplied, and down: [rows, hidden] to [rows, hidden]."""

    gated: Callable[[Taken], Gated]
    down: Callable[[Gated], Tensor]

    def __call__(self, x: Taken) -> Tensor:
        """See `Linear`."""
        return self.down(self.gated(x))


@dataclass(frozen=True, slots=True)
class Gates:
    """One activation, in the two forms that a product may ask for."""

    rows: Callable[[Tensor], Tensor]
    codes: Callable[[Tensor], Fp8Rows]


class _RowsLinear(Protocol):
    def __call__(self, x: Rows) -> Tensor: ...


def takes_codes(product: Callable[[Tensor], Tensor]) -> TypeGuard[_RowsLinear]:
    """Tell whether a product takes rows and codes alike."""
    if isinstance(product, SummedLinear):
        return takes_codes(product.base)
    if isinstance(product, Mlp):
        return isinstance(product.gated, GatedLinear) and takes_codes(product.gated.product)
    return isinstance(product, DynamicFp8Linear)


@dataclass(frozen=True, slots=True)
class AdaptedMlp:
    """Implements `Linear` by two forms of one MLP: adapters add to one, the other is as it is."""

    adapted: Linear
    plain: Linear
    adds: Callable[[], bool]

    def __call__(self, x: Tensor) -> Tensor:
        """See `Linear`."""
        return self.adapted(x) if self.adds() else self.plain(x)


@dataclass(frozen=True, slots=True)
class AdaptedNormed:
    """Implements `NormedLinear` by two: before a product that adapters add to, and without them."""

    adapted: NormedLinear
    plain: NormedLinear
    product: Linear
    """Either, whatever the step has."""
    adds: Callable[[], bool]

    @property
    def weight(self) -> Tensor:  # [hidden]
        """See `NormedLinear`."""
        return self.plain.weight

    def __call__(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """See `NormedLinear`."""
        return (self.adapted if self.adds() else self.plain)(x, residual)


def _is_adapted(product: Linear) -> TypeGuard[LoraLinear]:
    """Tell whether adapters may add to a product of codes."""
    return isinstance(product, LoraLinear) and takes_codes(product.base)


def normed(weight: Tensor, eps: float, add_rms_norm: AddNorm, product: Linear) -> NormedLinear:
    """Put a norm before a product, one that writes what the product takes."""
    rows = plain = product
    if isinstance(product, AdaptedMlp):
        rows, plain = product.adapted, product.plain
    elif _is_adapted(product):
        plain = product.base
    if isinstance(product, AdaptedMlp | LoraLinear) and plain is not rows:
        return AdaptedNormed(
            Normed(weight, eps, add_rms_norm, rows),
            normed(weight, eps, add_rms_norm, plain),
            product,
            product.adds,
        )
    if takes_codes(product):
        of_codes: Normed[Rows] = Normed(weight, eps, fp8_rows.add_rms_norm, product)
        return of_codes
    return Normed(weight, eps, add_rms_norm, product)


def gated_mlp(product: Linear, gates: Gates, down: Linear) -> Linear:
    """Put a gate between two products, one that writes what the second takes."""
    if _is_adapted(product) and _is_adapted(down):
        adapted = Mlp(GatedLinear(product, gates.rows), down)
        return AdaptedMlp(adapted, gated_mlp(product.base, gates, down.base), product.adds)
    if takes_codes(down):
        return Mlp(GatedLinear(product, gates.codes), down)
    return Mlp(GatedLinear(product, gates.rows), down)
