"""What copying blocks one way costs: a part that any copy takes, and one for each block.

    ms(n) = fixed + n x block

The fixed part is what is launched and waited for whatever the number of blocks.
"""

from dataclasses import dataclass

_NEWEST_WEIGHT = 0.2


@dataclass(frozen=True, slots=True)
class CopyPrice:
    """The two parts, in milliseconds."""

    fixed_ms: float = 0.0
    block_ms: float = 0.0

    def ms(self, num_blocks: int) -> float:
        """Return what so many blocks take together; no blocks take nothing."""
        return self.fixed_ms + num_blocks * self.block_ms if num_blocks else 0.0

    def corrected(self, predicted_ms: float, took_ms: float) -> "CopyPrice":
        """Move towards what copies took that were predicted to take `predicted_ms`.

        Both parts by the same factor: one time does not tell which was wrong.
        """
        if predicted_ms <= 0:
            return self
        factor = 1.0 + _NEWEST_WEIGHT * (took_ms / predicted_ms - 1.0)
        return CopyPrice(factor * self.fixed_ms, factor * self.block_ms)


def fitted(one_ms: float, many_ms: float, many: int) -> CopyPrice:
    """Fit the price to the times of copying one block and `many` blocks.

    If the marginal cost is not below the time of one block there is no fixed part; if it is not
    positive, the times are noise. In both cases each block costs its share of the many.
    """
    block_ms = (many_ms - one_ms) / (many - 1) if many > 1 else one_ms
    if 0 < block_ms < one_ms:
        return CopyPrice(one_ms - block_ms, block_ms)
    return CopyPrice(0.0, many_ms / many)
