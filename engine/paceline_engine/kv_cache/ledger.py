"""Which blocks a request holds: taken at its start, extended as it decodes, then given up."""

from paceline_engine.core.request import Request
from paceline_engine.kv_cache.pool import BlockPool
from paceline_engine.kv_cache.prefix import PrefixStats, extend_hashes, shared_blocks
from paceline_engine.kv_cache.swap import SwapSpace


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

    def take(self, request: Request, *, spare: int) -> bool:
        """Hold the blocks of every known token; False if fewer than `spare` would stay free."""
        shared = self._shared(request)
        fresh = self.most_needed(request) - len(shared)
        revived = sum(self.pool.holders(block_id) == 0 for block_id in shared)
        if self.pool.num_free - revived - fresh < spare:
            return False
        self.pool.share(shared)
        request.block_ids = shared + self.pool.allocate(fresh)
        request.num_computed = len(shared) * self._block_size
        if request.swap_slots:
            # What others have kept of it need not be copied back.
            request.num_computed = max(request.num_computed, request.num_swapped)
            self.swap.restore(request, len(shared))
        if request.num_preemptions == 0:
            request.num_cached = request.num_computed
            self.prefix.queries += request.num_prompt_tokens
            self.prefix.hits += request.num_cached
        return True

    def most_needed(self, request: Request) -> int:
        """Blocks of every known token, if none of them can be shared."""
        return self.most_for(len(request.token_ids))

    def most_for(self, num_tokens: int) -> int:
        """Blocks of so many tokens in a row."""
        return -(-num_tokens // self._block_size)

    def held_alone(self, request: Request) -> int:
        """Count the blocks that would be free without the request."""
        return sum(self.pool.holders(block_id) == 1 for block_id in request.block_ids)

    def is_full(self, request: Request) -> bool:
        """Tell whether the next token needs one more block."""
        return request.num_computed == len(request.block_ids) * self._block_size

    def extend(self, request: Request) -> None:
        """Hold one more block. The caller has checked that one is free."""
        request.block_ids += self.pool.allocate(1)

    def stretch(self, request: Request, tokens: int, *, spare: int) -> int:
        """Hold blocks for up to `tokens` more tokens, leaving `spare` free; how many fit."""
        size = self._block_size
        wanted = -(-(request.num_computed + tokens) // size) - len(request.block_ids)
        more = min(wanted, self.pool.num_free - spare)
        if more > 0:
            request.block_ids += self.pool.allocate(more)
        return min(tokens, len(request.block_ids) * size - request.num_computed)

    def seal(self, request: Request, start: int, end: int | None = None) -> None:
        """Let the blocks that were filled by tokens [start, end) be found by later prompts.

        Without `end`, by all that is computed.
        """
        size = self._block_size
        first, last = start // size, (request.num_computed if end is None else end) // size
        if first == last or not self._prefix_caching:
            return
        self._extend_hashes(request)
        for index in range(first, last):
            self.pool.seal(request.block_ids[index], request.block_hashes[index])

    def save(self, request: Request) -> bool:
        """Have what the request has computed copied to host memory; False without room there."""
        if not 0 < self.num_computed_blocks(request) <= self.swap.num_free:
            return False
        self.swap.save(request, self._block_size)
        return True

    def num_computed_blocks(self, request: Request) -> int:
        """Blocks that hold anything of the request."""
        return -(-request.num_computed // self._block_size)

    def give_up(self, request: Request) -> None:
        """Let go of everything the request holds."""
        self.pool.free(request.block_ids)
        request.block_ids = []
        request.num_computed = request.num_in_flight = 0

    def _shared(self, request: Request) -> list[int]:
        if not self._prefix_caching:
            return []
        self._extend_hashes(request)
        return shared_blocks(
            self.pool,
            request.block_hashes,
            num_tokens=len(request.token_ids),
            block_size=self._block_size,
        )

    def _extend_hashes(self, request: Request) -> None:
        extend_hashes(
            request.block_hashes,
            request.token_ids,
            block_size=self._block_size,
            salt=request.cache_salt,
        )
