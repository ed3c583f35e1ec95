"""Which blocks a request holds: allocated at its start, extended as it decodes, then freed.

Prompts share the full blocks of what they have in common. A block is identified by the chain
H(parent, tokens, salt): equal hashes mean equal tokens from the first one on, under one salt.
"""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from paceline_engine.core.block import BlockHash
from paceline_engine.core.request import Request
from paceline_engine.kv_cache.pool import BlockPool
from paceline_engine.kv_cache.swap import SwapSpace


@dataclass(slots=True)
class PrefixStats:
    """Tokens since start, each request counted once."""

    queries: int = 0
    hits: int = 0


class BlockLedger:
    """Fills `Request.block_ids` from one pool, shared prefixes first."""

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, num_slots: int = 0
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.prefix = PrefixStats()
        self.swap = SwapSpace(num_slots)
        self._block_size = block_size
        self._prefix_caching = prefix_caching

    def allocate(self, request: Request, *, spare: int) -> bool:
        """Hold the blocks of every known token; False if fewer than `spare` would stay free."""
        shared = self._shared_blocks(request)
        fresh = self.most_needed(request) - len(shared)
        revived = sum(self.pool.holders(block_id) == 0 for block_id in shared)
        if self.pool.num_free - revived - fresh < spare:
            return False
        self.pool.share(shared)
        request.block_ids = shared + self.pool.allocate(fresh)
        request.num_computed = len(shared) * self._block_size
        if request.swap_slots:
            # Blocks that were found in the prefix cache need not be copied back.
            request.num_computed = max(request.num_computed, request.num_swapped)
            self.swap.restore(request, len(shared))
        if request.num_preemptions == 0:
            request.num_cached = request.num_computed
            self.prefix.queries += request.num_prompt_tokens
            self.prefix.hits += request.num_cached
        return True

    def foreseen(self, request: Request) -> int:
        """Estimate how many tokens of a waiting request need not be computed.

        Its prefix is looked up in a few places: the pool lets go of a chain from its end.
        """
        held = request.num_swapped if request.swap_slots else 0
        if not self._prefix_caching:
            return held
        self._extend_hashes(request)
        last = (len(request.token_ids) - 1) // self._block_size
        hashes = request.block_hashes
        found = bisect_left(range(last), True, key=lambda k: self.pool.find(hashes[k]) is None)
        return max(held, found * self._block_size)

    def most_needed(self, request: Request) -> int:
        """Count the blocks of every known token, as if none could be shared."""
        return self.most_for(len(request.token_ids))

    def most_for(self, num_tokens: int) -> int:
        """Count the blocks of one sequence of so many tokens."""
        return -(-num_tokens // self._block_size)

    def held_alone(self, request: Request) -> int:
        """Count the blocks that would be free without the request."""
        return sum(self.pool.holders(block_id) == 1 for block_id in request.block_ids)

    def unfilled(self, request: Request) -> int:
        """Count the free token slots in the request's blocks, those for drafts included."""
        return max(0, len(request.block_ids) * self._block_size - len(request.token_ids))

    def is_full(self, request: Request) -> bool:
        """Tell whether the next token needs one more block."""
        return request.num_computed == len(request.block_ids) * self._block_size

    def extend(self, request: Request) -> None:
        """Hold one more block. The caller has checked that one is free."""
        request.block_ids += self.pool.allocate(1)

    def reserve(self, request: Request, tokens: int, *, spare: int) -> int:
        """Hold blocks for up to `tokens` more tokens, leaving `spare` free; return how many fit."""
        size = self._block_size
        wanted = -(-(request.num_computed + tokens) // size) - len(request.block_ids)
        more = min(wanted, self.pool.num_free - spare)
        if more > 0:
            request.block_ids += self.pool.allocate(more)
        return min(tokens, len(request.block_ids) * size - request.num_computed)

    def cache_blocks(self, request: Request, start: int, end: int) -> None:
        """Let later prompts find the blocks that tokens [start, end) have filled."""
        size = self._block_size
        first, last = start // size, end // size
        if first == last or not self._prefix_caching:
            return
        self._extend_hashes(request)
        for index in range(first, last):
            self.pool.cache_block(request.block_ids[index], request.block_hashes[index])

    def save(self, request: Request) -> bool:
        """Copy what the request has computed to host memory; False if there is no room."""
        if not 0 < self.num_computed_blocks(request) <= self.swap.num_free:
            return False
        self.swap.save(request, self._block_size)
        return True

    def num_computed_blocks(self, request: Request) -> int:
        """Count the blocks that hold computed tokens of the request."""
        return -(-request.num_computed // self._block_size)

    def free(self, request: Request) -> None:
        """Free everything that the request holds."""
        self.pool.free(request.block_ids)
        request.block_ids = []
        request.num_computed = request.num_in_flight = 0

    def _shared_blocks(self, request: Request) -> list[int]:
        """Find the longest run of blocks, from the first, that the pool still holds.

        It never covers every known token: the last one must be computed to give a next one.
        """
        if not self._prefix_caching:
            return []
        self._extend_hashes(request)
        found: list[int] = []
        for block_hash in request.block_hashes[: (len(request.token_ids) - 1) // self._block_size]:
            block_id = self.pool.find(block_hash)
            if block_id is None:
                break
            found.append(block_id)
        return found

    def _extend_hashes(self, request: Request) -> None:
        extend_hashes(
            request.block_hashes,
            request.token_ids,
            block_size=self._block_size,
            salt=request.cache_salt,
        )


def extend_hashes(
    hashes: list[BlockHash], token_ids: Sequence[int], *, block_size: int, salt: str
) -> None:
    """Append the hashes of the blocks that have become full since `hashes` was last extended."""
    parent = hashes[-1] if hashes else None
    for start in range(len(hashes) * block_size, len(token_ids) - block_size + 1, block_size):
        parent = _hash_block(parent, token_ids[start : start + block_size], salt)
        hashes.append(parent)


def _hash_block(parent: BlockHash | None, tokens: Sequence[int], salt: str) -> BlockHash:
    # The salt enters with the first block and reaches the others through the chain.
    root = sha256(salt.encode()).digest() if parent is None else parent
    # sha256 rather than a fast hash: whoever finds a collision reads another tenant's cache.
    return BlockHash(sha256(root + array("q", tokens).tobytes()).digest())
