"""The grid of a sweep: which limits are tried. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

Axis = Literal["batch_size", "token_budget"]


BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32, 64)


TOKEN_BUDGETS: Final = (64, 128, 256, 512, 1024, 2048)


@dataclass(frozen=True, slots=True)
class Setting:
    """One point of the grid."""

    axis: Axis
    batch_size: int
    token_budget: int

    @property
    def place(self) -> int:
        """The value of the limit that its axis varies."""
        return self.batch_size if self.axis == "batch_size" else self.token_budget


def grid(*, batch_size: int, token_budget: int, per_axis: int) -> tuple[Setting, ...]:
    """List both axes, each with the other limit held; `per_axis` points at most."""
    batches = (
        Setting("batch_size", size, max(token_budget, size))
        for size in thinned(BATCH_SIZES, per_axis)
    )
    budgets = (
        Setting("token_budget", min(batch_size, budget), budget)
        for budget in thinned(TOKEN_BUDGETS, per_axis)
    )
    return (*batches, *budgets)


def thinned(values: Sequence[int], count: int) -> tuple[int, ...]:
    """About `count` of the values, both ends among them; only the last where one is wanted."""
    if count >= len(values):
        return tuple(values)
    if count == 1:
        return (values[-1],)
    return tuple(values[round(i * (len(values) - 1) / (count - 1))] for i in range(count))
