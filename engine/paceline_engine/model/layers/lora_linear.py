"""A product that adapters add to: each token its own, or none.

The matrices of all slots lie side by side, so one pair of products serves every adapter of the
step: x times all A gives [tokens, slots * rank], of which a mask keeps the token's own slot, and
times all B that is what is added. A step that no adapter takes part in pays for none of it.
"""

from dataclasses import dataclass

from torch import Tensor

from paceline_engine.checkpoint.peft_folder import LoraPair
from paceline_engine.model.layers.linear import Linear


@dataclass(slots=True)
class TokenSlots:
    """Which slot each token of the step uses; set before the step, read by every product."""

    mask: Tensor | None = None  # [tokens, slots * rank]: 1 in the token's own slot, else 0


class LoraLinear:
    """See `Linear`."""

    def __init__(
        self, base: Linear, parts: dict[str, int], num_inputs: int, token_slots: TokenSlots
    ) -> None:
        self.parts = parts  # outputs of each weight that is stacked in `base`
        self.num_inputs = num_inputs
        self._base = base
        self._token_slots = token_slots
        self._downs: list[Tensor] = []  # per part [slots * rank, in]
        self._ups: list[Tensor] = []  # per part [slots * rank, outputs]

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply, then add what each token's adapter adds."""
        y, mask = self._base(x), self._token_slots.mask
        if mask is None:
            return y
        first = 0
        for down, up in zip(self._downs, self._ups, strict=True):
            part = y[:, first : first + up.shape[1]]
            part += ((x @ down.t()) * mask) @ up
            first += up.shape[1]
        return y

    def reserve(self, width: int, *, like: Tensor) -> None:  # width: slots * rank
        """Take the memory, zeroed: an empty slot adds nothing."""
        self._downs = [like.new_zeros(width, self.num_inputs) for _ in self.parts]
        self._ups = [like.new_zeros(width, outputs) for outputs in self.parts.values()]

    def put(self, part: str, columns: slice, pair: LoraPair | None) -> None:
        """Fill a slot's columns with an adapter of at most their rank; None empties them."""
        index = list(self.parts).index(part)
        down, up = self._downs[index][columns], self._ups[index][columns]
        down.zero_()
        up.zero_()
        if pair is not None:
            rank = len(pair.down)
            down[:rank].copy_(pair.down)
            up[:rank].copy_(pair.up.t())
