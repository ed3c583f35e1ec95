"""Page lists are the block table in other words."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.attention.prefill.attention import Chunk
from paceline_engine.attention.prefill.pages import page_bounds, page_ids

CHUNKS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(0, 90)).map(lambda both: Chunk(both[0], sum(both))),
    min_size=1,
    max_size=6,
)


@given(chunks=CHUNKS, page_size=st.integers(1, 20))
def test_bounds_say_how_long_each_context_is(chunks: list[Chunk], page_size: int) -> None:
    """Whole pages, and what lies in the last; tokens one chunk after the other."""
    bounds = page_bounds(chunks, page_size)

    assert bounds.tokens[0] == bounds.pages[0] == 0
    for row, chunk in enumerate(chunks):
        num_pages = bounds.pages[row + 1] - bounds.pages[row]
        last = bounds.last_page_lens[row]
        assert (num_pages - 1) * page_size + last == chunk.context
        assert 1 <= last <= page_size
        assert bounds.tokens[row + 1] - bounds.tokens[row] == chunk.tokens


@given(chunks=CHUNKS, page_size=st.integers(1, 20), spare=st.integers(0, 3))
def test_ids_are_the_blocks_that_each_context_needs(
    chunks: list[Chunk], page_size: int, spare: int
) -> None:
    """In their order; what pads a row is not among them."""
    counts = [-(-chunk.context // page_size) for chunk in chunks]
    width = max(counts) + spare
    table = torch.arange(1, len(chunks) * width + 1, dtype=torch.int32).view(len(chunks), width)
    lens = torch.tensor([chunk.context for chunk in chunks], dtype=torch.int32)
    bounds = page_bounds(chunks, page_size)

    ids = page_ids(table, lens, page_size, bounds.pages[-1])

    assert ids.dtype == torch.int32
    for row, count in enumerate(counts):
        mine = ids[bounds.pages[row] : bounds.pages[row + 1]]
        assert mine.tolist() == table[row, :count].tolist()
