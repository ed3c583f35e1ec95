"""What one prompt can share with those before it."""

import pytest

from paceline_engine.core.block import BlockHash
from paceline_engine.core.request import Request
from paceline_engine.kv_cache.ledger import extend_hashes
from paceline_testing.engines import EngineUnderTest, a_capacity, a_submit
from paceline_wire import Sampling

BLOCK = 4
PROMPT = list(range(100, 110))


def hashes_of(tokens: list[int], salt: str = "") -> list[BlockHash]:
    hashes: list[BlockHash] = []
    extend_hashes(hashes, tokens, block_size=BLOCK, salt=salt)
    return hashes


def an_engine(*, prefix_caching: bool = True) -> EngineUnderTest:
    return EngineUnderTest(a_capacity(block_size=BLOCK), prefix_caching=prefix_caching)


def cached_tokens(under_test: EngineUnderTest, id: str) -> int:
    return under_test.outputs[id][0].cached_tokens


def test_only_full_blocks_have_a_hash() -> None:
    """The rest of the tokens may still change what lies in the last one."""
    assert len(hashes_of(PROMPT[:3])) == 0
    assert len(hashes_of(PROMPT[:4])) == 1
    assert len(hashes_of(PROMPT[:11])) == 2


def test_a_hash_covers_everything_before_it() -> None:
    """Equal tokens after different ones have different keys and values."""
    tail = [5, 6, 7, 8]

    assert hashes_of([1, 2, 3, 4, *tail])[1] != hashes_of([4, 3, 2, 1, *tail])[1]
    assert hashes_of([1, 2, 3, 4, *tail])[1] == hashes_of([1, 2, 3, 4, *tail, 9])[1]


def test_hashes_of_two_salts_never_meet() -> None:
    """A tenant must not learn from timing what another one asked."""
    assert not set(hashes_of(PROMPT, "one")) & set(hashes_of(PROMPT, "two"))


def test_names_are_the_same_however_they_are_extended() -> None:
    """Generated tokens are named as they come, prompts at once."""
    hashes: list[BlockHash] = []
    for end in range(len(PROMPT) + 1):
        extend_hashes(hashes, PROMPT[:end], block_size=BLOCK, salt="")

    assert hashes == hashes_of(PROMPT)


def test_a_prompt_seen_before_is_taken_from_the_cache() -> None:
    """Its full blocks are not computed again, and the answer is the same."""
    under_test = an_engine()

    under_test.submit(a_submit("first", PROMPT))
    under_test.run_to_end()
    under_test.submit(a_submit("again", PROMPT))
    under_test.run_to_end()

    assert cached_tokens(under_test, "first") == 0
    assert cached_tokens(under_test, "again") == 8
    assert under_test.tokens("again") == under_test.tokens("first")
    assert under_test.engine.counters.prompt_tokens == 10 + 2
    load = under_test.engine.load()
    assert (load.prefix_queries, load.prefix_hits) == (20, 8)


def test_a_prompt_is_never_taken_whole() -> None:
    """The last token must be computed, or there would be no next one."""
    under_test = an_engine()
    prompt = PROMPT[:8]

    under_test.submit(a_submit("first", prompt))
    under_test.run_to_end()
    under_test.submit(a_submit("again", prompt))
    under_test.run_to_end()

    assert cached_tokens(under_test, "again") == 4
    assert under_test.tokens("again") == under_test.tokens("first")


def test_an_answer_is_shared_by_the_next_turn() -> None:
    """A chat sends back what it was told: prompt and answer are both in the cache."""
    under_test = an_engine()
    under_test.submit(a_submit("turn 1", PROMPT, max_tokens=7))
    under_test.run_to_end()

    under_test.submit(a_submit("turn 2", [*PROMPT, *under_test.tokens("turn 1"), 1, 2, 3]))
    under_test.run_to_end()

    assert cached_tokens(under_test, "turn 2") == 16


def test_a_running_prompt_is_shared_too() -> None:
    """A burst of equal prompts costs one: the blocks are held by all of them."""
    under_test = an_engine()
    under_test.submit(a_submit("first", PROMPT, max_tokens=20))
    under_test.step()

    under_test.submit(a_submit("second", PROMPT, max_tokens=20))
    under_test.step()
    used = under_test.engine.load().kv_used_blocks
    under_test.run_to_end()

    assert cached_tokens(under_test, "second") == 8
    assert used == 4  # two shared, one of each
    assert under_test.tokens("first") == under_test.tokens("second")


def test_another_salt_finds_nothing() -> None:
    """Sharing stops at the tenant."""
    under_test = an_engine()
    under_test.submit(a_submit("one", PROMPT, cache_salt="one"))
    under_test.run_to_end()

    under_test.submit(a_submit("two", PROMPT, cache_salt="two"))
    under_test.run_to_end()

    assert cached_tokens(under_test, "two") == 0


def test_caching_can_be_switched_off() -> None:
    """For benchmarks that must not measure their own repeats."""
    under_test = an_engine(prefix_caching=False)
    for id in ("first", "again"):
        under_test.submit(a_submit(id, PROMPT))
        under_test.run_to_end()

    assert cached_tokens(under_test, "again") == 0
    assert under_test.engine.load().kv_cached_blocks == 0


def test_shared_blocks_that_lie_free_are_counted_as_needed() -> None:
    """Taking them from the free list leaves less for the rest of the prompt."""
    under_test = EngineUnderTest(a_capacity(block_size=BLOCK, num_blocks=8))
    under_test.submit(a_submit("first", [*PROMPT, 1, 2], max_tokens=1))
    under_test.run_to_end()
    under_test.submit(a_submit("running", [7] * 10, max_tokens=6))
    under_test.step()
    assert under_test.engine.load().kv_used_blocks == 3

    # Three blocks shared and three of its own: two more than are free.
    under_test.submit(a_submit("long", PROMPT + [1, 2] + [3] * 11, max_tokens=2))
    under_test.step()

    assert under_test.engine.load().waiting == 1
    under_test.run_to_end()
    assert cached_tokens(under_test, "long") == 12


@pytest.mark.parametrize("shared", [0, 3, 4, 7, 10])
def test_a_prefix_is_foreseen_as_it_will_be_found(shared: int) -> None:
    """A step that is planned before admission must know what its chunks attend to."""
    under_test = an_engine()
    under_test.submit(a_submit("first", PROMPT))
    under_test.run_to_end()
    blocks = under_test.engine.requests.blocks
    prompt = PROMPT[:shared] + list(range(200, 210 - shared))
    waiting = Request("next", prompt, len(prompt), Sampling(max_tokens=1))

    foreseen = blocks.foreseen(waiting)

    assert blocks.allocate(waiting, spare=0)
    assert foreseen == waiting.num_computed
