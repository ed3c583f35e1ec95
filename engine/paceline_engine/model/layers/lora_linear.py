"""A product that adapters add to: each token its own, or none.

The matrices of all slots lie in two tensors that stay where they are, and which slot a token uses
lies on the device: CUDA graphs of steps with adapters are captured as any others. A step that no
adapter takes part in launches nothing.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from paceline_engine.checkpoint.peft_folder import LoraPair
from paceline_engine.model.layers.linear import Linear
from paceline_kernels import add_adapters


@dataclass(slots=True)
class TokenSlots:
    """Which slot each token of the step uses, -1 for none; set before the step."""

    of_tokens: Tensor | None = None  # [T] int64; None: no adapter takes part
    of_kept: Tensor | None = None  # [kept] int64: of the tokens that the last layer ends with

    def of(self, num_tokens: int) -> Tensor | None:
        """Return the slots of what a product is given: all tokens, or those that are kept."""
        if self.of_kept is not None and num_tokens == len(self.of_kept):
            return self.of_kept
        return self.of_tokens


class LoraLinear:
    """See `Linear`."""

    def __init__(
        self, base: Linear, parts: dict[str, int], num_inputs: int, token_slots: TokenSlots
    ) -> None:
        self.parts = parts  # outputs of each weight that is stacked in `base`
        self.num_inputs = num_inputs
        self.base = base
        self._token_slots = token_slots
        self._ends = tuple(accumulate(parts.values()))
        self._down = self._up = torch.empty(0)

    def adds(self) -> bool:
        """Tell whether an adapter takes part in the step."""
        return self._token_slots.of_tokens is not None

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply, then add what each token's adapter adds."""
        y, slots = self.base(x), self._token_slots.of(len(x))
        if slots is None:
            return y
        return add_adapters(y, x, self._down, self._up, slots, self._ends)

    def reserve(self, num_slots: int, rank: int, *, like: Tensor) -> None:
        """Take the memory, zeroed: an empty slot adds nothing."""
        self._down = like.new_zeros(num_slots, len(self.parts) * rank, self.num_inputs)
        self._up = like.new_zeros(num_slots, self._ends[-1], rank)

    def put(self, part: str, slot: int, pair: LoraPair | None) -> None:
        """Fill a slot with an adapter of at most its rank; None empties it."""
        index, most = list(self.parts).index(part), self._up.shape[2]
        down = self._down[slot, index * most : (index + 1) * most]
        end = self._ends[index]
        up = self._up[slot, end - self.parts[part] : end]
        down.zero_()
        up.zero_()
        if pair is not None:
            rank = len(pair.down)
            down[:rank].copy_(_sent(pair.down, down))
            up[:, :rank].copy_(_sent(pair.up, up))


def _sent(weight: Tensor, like: Tensor) -> Tensor:
    """Send a weight to the device of another, in its type, out of pinned memory.

    Steps are on their way there: a copy from other memory would wait for them.
    """
    weight = weight.to(like.dtype)
    if like.device.type == "cpu":
        return weight
    return weight.contiguous().pin_memory().to(like.device, non_blocking=True)
