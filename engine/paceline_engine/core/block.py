"""One block of the KV cache, and the hash that says what lies in it."""

from dataclasses import dataclass
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""Names the tokens of a full block and of everything before it."""


@dataclass(slots=True, eq=False)
class Block:
    """A fixed run of token slots. Mutable, owned by the pool.

    A free block is a link of the pool's list; `before` and `after` are None while it is held.
    """

    id: int
    holders: int = 0
    """Requests that read or write it; at 0 it is free."""
    hash: BlockHash | None = None
    """What lies in it, once full; kept while free, until the block is used anew."""
    before: "Block | None" = None
    after: "Block | None" = None
