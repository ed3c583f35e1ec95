"""Captured decode sizes: whatever the capacity, every batch has one that is close and holds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.core.graph_sizes import decode_sizes, mixed_sizes, padded_size

CAPACITIES = st.integers(1, 5000)


def test_sizes_are_dense_where_steps_are_short() -> None:
    """One row more is most of a small step's difference, and little of a large one's."""
    sizes = decode_sizes(700)

    assert sizes[:9] == (1, 2, 3, 4, 6, 8, 16, 24, 32)
    assert [size for size in sizes if 112 <= size <= 176] == [112, 120, 128, 144, 160, 176]
    assert [size for size in sizes if 240 <= size <= 320] == [240, 256, 288, 320]
    assert [size for size in sizes if size >= 480] == [480, 512, 576, 640, 700]


@pytest.mark.parametrize("capacity", [1, 5, 8, 97, 100, 250, 256], ids=str)
def test_the_capacity_is_one_of_the_sizes(capacity: int) -> None:
    """A limit that is no round number must not drop the fullest batches out of the graphs."""
    sizes = decode_sizes(capacity)

    assert sizes[-1] == capacity
    assert padded_size(sizes, capacity) == capacity


@given(CAPACITIES)
def test_sizes_ascend_within_the_capacity(capacity: int) -> None:
    """Each is captured once, and none needs a row that was never allocated."""
    sizes = decode_sizes(capacity)

    assert sizes[0] == 1
    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == capacity


@given(CAPACITIES, CAPACITIES)
def test_a_smaller_capacity_only_cuts_the_sizes(one: int, other: int) -> None:
    """What a size costs may be compared between engines of different capacity."""
    small, large = sorted((one, other))

    assert set(decode_sizes(small)[:-1]) <= set(decode_sizes(large))


@given(CAPACITIES, st.data())
def test_a_batch_is_padded_to_the_least_size_that_holds_it(
    capacity: int, data: st.DataObject
) -> None:
    """Nothing larger is computed than must be, and at most a third and a few rows are padding."""
    sizes = decode_sizes(capacity)
    rows = data.draw(st.integers(1, capacity))

    size = padded_size(sizes, rows)

    assert size in sizes
    assert size >= rows
    assert all(other < rows for other in sizes if other < size)
    assert size - rows < max(8, rows / 4)


@pytest.mark.parametrize("rows", [-1, 0, 101], ids=str)
def test_a_batch_without_a_size_is_refused(rows: int) -> None:
    """An uncaptured shape is an error of the caller's, never a silent slow path."""
    with pytest.raises(ValueError, match=rf"count must be in \[1, 100\], got {rows}"):
        padded_size(decode_sizes(100), rows)


def test_no_rows_at_all_are_refused() -> None:
    """A capacity below one row is a mistake that names itself."""
    with pytest.raises(ValueError, match="max_batch_size must be at least 1, got 0"):
        decode_sizes(0)


@given(st.integers(1, 20_000))
def test_sizes_of_mixed_steps_ascend_to_the_longest_step_or_the_last(max_tokens: int) -> None:
    """Each is captured at start, so there are few; a longer step is no step of any size."""
    sizes = mixed_sizes(max_tokens)

    assert list(sizes) == sorted(set(sizes))
    assert sizes[-1] == min(max_tokens, 1024)
    assert sizes[0] >= 1
    assert len(sizes) <= 24


@given(st.integers(1, 1024))
def test_a_mixed_step_is_padded_by_a_quarter_at_most(num_tokens: int) -> None:
    """Padding of so many tokens is real work; of a handful it is none."""
    assert padded_size(mixed_sizes(8192), num_tokens) <= max(num_tokens + 7, 1.25 * num_tokens)


def test_a_step_without_a_token_has_no_size() -> None:
    """It names itself, as a capacity without a row does."""
    with pytest.raises(ValueError, match="max_tokens must be at least 1, got 0"):
        mixed_sizes(0)
