"""Who holds which block, and which free block is used next."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.core.block import BlockHash
from paceline_engine.kv_cache.pool import BlockPool


def a_hash(name: str) -> BlockHash:
    return BlockHash(name.encode())


def test_a_freed_block_can_be_shared_until_it_is_used_anew() -> None:
    """The free list is the prefix cache: it costs no memory of its own."""
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    pool.cache_block(block, a_hash("a"))
    pool.free([block])

    assert pool.find(a_hash("a")) == block
    assert pool.num_cached == 1

    pool.allocate(2)

    assert pool.find(a_hash("a")) is None
    assert pool.num_cached == 0


def test_a_cached_block_in_the_middle_of_the_free_list_is_held_again() -> None:
    """A prompt may hit any block that lies free."""
    pool = BlockPool(5)
    blocks = pool.allocate(3)
    for name, block in zip("abc", blocks, strict=True):
        pool.cache_block(block, a_hash(name))
    pool.free(blocks)

    pool.share([blocks[1]])

    assert pool.holders(blocks[1]) == 1
    assert pool.num_free == 4
    assert blocks[1] not in pool.allocate(4)


def test_blocks_that_nobody_could_share_are_used_first() -> None:
    """What is in the cache stays there as long as something worthless is free."""
    pool = BlockPool(2)
    cached, worthless = pool.allocate(2)
    pool.cache_block(cached, a_hash("a"))
    pool.free([cached, worthless])

    assert pool.allocate(1) == [worthless]
    assert pool.find(a_hash("a")) == cached


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    """A prefix without its tail can be shared, a tail without its prefix cannot."""
    pool = BlockPool(2)
    head, tail = pool.allocate(2)
    pool.cache_block(head, a_hash("head"))
    pool.cache_block(tail, a_hash("tail"))
    pool.free([head, tail])

    assert pool.allocate(1) == [tail]
    assert pool.find(a_hash("head")) == head


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    """A prefix that is hit again becomes young again."""
    pool = BlockPool(2)
    old, young = pool.allocate(2)
    pool.cache_block(old, a_hash("old"))
    pool.cache_block(young, a_hash("young"))
    pool.free([old])
    pool.free([young])
    pool.share([old])
    pool.free([old])

    assert pool.allocate(1) == [young]


def test_equal_content_keeps_its_first_block() -> None:
    """Two requests may compute one prefix at once; what is written is never moved."""
    pool = BlockPool(2)
    first, second = pool.allocate(2)

    pool.cache_block(first, a_hash("a"))
    pool.cache_block(second, a_hash("a"))

    assert pool.find(a_hash("a")) == first


def test_more_than_is_free_is_refused() -> None:
    """The scheduler asks first, or it would take half."""
    pool = BlockPool(2)

    with pytest.raises(ValueError, match="at most the 2 free blocks, got 3"):
        pool.allocate(3)

    assert pool.num_free == 2


def test_a_free_block_cannot_be_freed() -> None:
    """A second free would hand one block to two requests."""
    pool = BlockPool(1)

    with pytest.raises(ValueError, match="block 0 is free"):
        pool.free([0])


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(
    num_blocks=st.integers(1, 12),
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=60),
)
def test_every_block_is_free_or_held_as_often_as_taken(
    num_blocks: int, moves: list[tuple[int, int]]
) -> None:
    """Against a model that is a bag of holds."""
    pool = BlockPool(num_blocks)
    holds: list[list[int]] = []

    for move, number in moves:
        if move == 0 and number <= pool.num_free:
            holds.append(pool.allocate(number))
        elif move == 1 and holds:
            pool.free(holds.pop(number % len(holds)))
        elif move == 2 and holds:
            for index, block in enumerate(holds[number % len(holds)]):
                pool.cache_block(block, a_hash(f"{number} {index}"))
        elif move == 3:
            found = pool.find(a_hash(f"{number} 0"))
            if found is not None:
                pool.share([found])
                holds.append([found])

        held = Counter(block for hold in holds for block in hold)
        assert [pool.holders(block) for block in range(num_blocks)] == [
            held[block] for block in range(num_blocks)
        ]
        assert pool.num_used == len(held)
    for hold in holds:
        pool.free(hold)
    assert sorted(pool.allocate(num_blocks)) == list(range(num_blocks))
    assert pool.num_cached == 0
