"""The pool of KV blocks: who holds which block, and which free block is used next.

Free blocks form one intrusive list, the next to be used first. A freed block that a prompt could
share keeps its hash and goes to the end: the free list is the prefix cache, least recently
used first, and costs no memory of its own. A block that nobody could share goes to the front.
"""

from collections.abc import Sequence

from paceline_engine.core.block import Block, BlockHash


class BlockPool:
    """A fixed number of blocks, each free or held by one or more requests."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._by_hash: dict[BlockHash, Block] = {}
        self._ends = Block(-1)  # closes the ring: after it comes the next block to use
        self._ends.before = self._ends.after = self._ends
        for block in self._blocks:
            self._append(block)
        self.num_free = num_blocks
        self.num_cached = 0
        """Free blocks whose content can still be shared."""

    @property
    def num_blocks(self) -> int:
        """Blocks, free and held."""
        return len(self._blocks)

    @property
    def num_used(self) -> int:
        """Blocks held."""
        return len(self._blocks) - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Hold `count` blocks of unknown content. The caller has checked `num_free`."""
        if count > self.num_free:
            raise ValueError(f"count must be at most the {self.num_free} free blocks, got {count}")
        taken = []
        for _ in range(count):
            block = self._ends.after
            assert block is not None  # noqa: S101 - the ring is closed
            self._unlink(block)
            if block.hash is not None:
                del self._by_hash[block.hash]
                block.hash = None
            taken.append(block.id)
        return taken

    def share(self, block_ids: Sequence[int]) -> None:
        """Hold blocks that `find` returned, as one more holder."""
        for block_id in block_ids:
            block = self._blocks[block_id]
            if block.holders == 0:
                self._unlink(block)
            else:
                block.holders += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Give up one hold on each block of a sequence; its tail is reused before its head."""
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            if block.holders < 1:
                raise ValueError(f"block {block_id} is free already")
            block.holders -= 1
            if block.holders == 0:
                self._release(block)

    def cache_block(self, block_id: int, block_hash: BlockHash) -> None:
        """Make a full block findable by its hash. An equal block that is cached is not replaced."""
        block = self._blocks[block_id]
        if block.hash is None and block_hash not in self._by_hash:
            block.hash = block_hash
            self._by_hash[block_hash] = block

    def find(self, block_hash: BlockHash) -> int | None:
        """Look up the block that holds this content, free or held."""
        block = self._by_hash.get(block_hash)
        return None if block is None else block.id

    def holders(self, block_id: int) -> int:
        """Count the requests that hold a block."""
        return self._blocks[block_id].holders

    def _unlink(self, block: Block) -> None:
        before, after = block.before, block.after
        assert before is not None and after is not None  # noqa: S101, PT018 - a free block is linked
        before.after, after.before = after, before
        block.before = block.after = None
        block.holders = 1
        self.num_free -= 1
        self.num_cached -= block.hash is not None

    def _release(self, block: Block) -> None:
        self.num_free += 1
        if block.hash is None:
            self._prepend(block)
        else:
            self.num_cached += 1
            self._append(block)

    def _append(self, block: Block) -> None:
        last = self._ends.before
        assert last is not None  # noqa: S101 - the ring is closed
        _link(last, block, self._ends)

    def _prepend(self, block: Block) -> None:
        first = self._ends.after
        assert first is not None  # noqa: S101 - the ring is closed
        _link(self._ends, block, first)


def _link(before: Block, block: Block, after: Block) -> None:
    block.before, block.after = before, after
    before.after = after.before = block
