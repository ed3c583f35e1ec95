"""Which part of the model each rank holds: some heads, and some of the MLP's features.

q, k, v, gate and up are cut by their outputs, so each rank attends with heads of its own; the
products after them are cut by their inputs, so what the ranks give adds up to the whole
(Shoeybi et al., Megatron-LM, arXiv:1909.08053). Embedding, norms and head are whole everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from torch import Tensor

from paceline_engine.core.model_config import ModelConfig
from paceline_engine.errors import BadSettings
from paceline_engine.hardware.model_size import RanksDoNotDivide, rank_part
from paceline_engine.model.group import Group
from paceline_engine.model.layers.linear import PlainLinear

Taken = TypeVar("Taken")


def shard_of(config: ModelConfig, size: int) -> ModelConfig:
    """Return the sizes of one rank's part. Raises BadSettings where they do not divide."""
    try:
        return rank_part(config, size)
    except RanksDoNotDivide as problem:
        raise BadSettings(
            f"PACELINE_ENGINE_TENSOR_PARALLEL_SIZE is {size}, which does not divide the "
            f"model's {problem.count} {problem.name}."
        ) from problem


def part_of(weight: Tensor, group: Group, dim: int) -> Tensor:
    """Return this rank's part of a weight, cut along `dim`."""
    size = weight.shape[dim] // group.size
    return weight.narrow(dim, group.rank * size, size)


@dataclass(frozen=True, slots=True)
class SummedLinear(Generic[Taken]):
    """A product that every rank holds a part of the inputs of."""

    base: Callable[[Taken], Tensor]
    group: Group

    def __call__(self, x: Taken) -> Tensor:
        """See `Linear`; what ranks read of each other is written there by the product itself."""
        base, peers = self.base, self.group.peers
        if peers is not None and isinstance(base, PlainLinear) and isinstance(x, Tensor):
            place = peers.place((len(x), len(base.weight)), x.dtype)
            if place is not None:
                return self.group.sum_(base(x, place))
        return self.group.sum_(self.base(x))
