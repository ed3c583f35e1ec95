"""Which blocks a prompt can share with those that came before it.

A block is named by the chain H(parent, tokens, salt): equal names mean equal tokens from the
first one on, under one salt. Only full blocks have a name.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from paceline_engine.core.block import BlockHash
from paceline_engine.kv_cache.pool import BlockPool


@dataclass(slots=True)
class PrefixStats:
    """Counted in tokens since start, once per request."""

    queries: int = 0
    hits: int = 0


def block_hash(parent: BlockHash | None, tokens: Sequence[int], salt: str) -> BlockHash:
    """Name one full block. The salt enters with the first block and reaches the rest by chain."""
    root = sha256(salt.encode()).digest() if parent is None else parent
    # sha256, not a fast hash: whoever finds a collision reads another tenant's cache.
    return BlockHash(sha256(root + array("q", tokens).tobytes()).digest())


def extend_hashes(
    hashes: list[BlockHash], token_ids: Sequence[int], *, block_size: int, salt: str
) -> None:
    """Append the names of the blocks that have become full since `hashes` was last extended."""
    parent = hashes[-1] if hashes else None
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = block_hash(parent, token_ids[start : start + block_size], salt)
        hashes.append(parent)


def shared_blocks(
    pool: BlockPool, hashes: Sequence[BlockHash], *, num_tokens: int, block_size: int
) -> list[int]:
    """Find the longest run of blocks, from the first, that the pool still holds.

    Never the whole of `num_tokens`: the last token must be computed to give a next one.
    """
    found: list[int] = []
    for name in hashes[: (num_tokens - 1) // block_size]:
        block_id = pool.find(name)
        if block_id is None:
            break
        found.append(block_id)
    return found
