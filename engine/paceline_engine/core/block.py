"""One block of the KV cache, and the hash of its content."""

from dataclasses import dataclass
from typing import NewType

BlockHash = NewType("BlockHash", bytes)
"""Identifies the tokens of a full block together with everything before it."""


@dataclass(slots=True, eq=False)
class Block:
    """A fixed run of token slots. Mutable, owned by the pool.

    A free block is a link of the pool's list; `before` and `after` are None while it is held.
    """

    id: int
    holders: int = 0
    """Requests that read or write it; at 0 it is free."""
    hash: BlockHash | None = None
    """Identifies the content once the block is full; kept while free, until it is used again."""
    before: "Block | None" = None
    after: "Block | None" = None
