"""The profile's table: more of anything never takes less, and no time is made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.pacing.cost_points import CostPoint
from paceline_engine.pacing.cost_table import cost_table, monotone

POINTS = st.lists(
    st.builds(
        CostPoint,
        decode=st.integers(0, 4),
        context_each=st.integers(1, 3),
        prefill=st.integers(0, 3),
        prompt_tokens=st.integers(1, 3),
        prefill_context=st.integers(0, 2),
    ),
    min_size=1,
    max_size=20,
    unique=True,
)
TIMES = st.floats(0.01, 1e4)


def is_within(small: CostPoint, large: CostPoint) -> bool:
    return (
        small.decode <= large.decode
        and small.context <= large.context
        and small.prefill <= large.prefill
        and small.attention <= large.attention
    )


@given(POINTS, st.data())
def test_more_of_anything_never_takes_less(points: list[CostPoint], data: st.DataObject) -> None:
    """A pacer that is told so would fill steps up to make them shorter."""
    measured = [data.draw(TIMES) for _ in points]

    told = monotone(points, measured)

    for small, less in zip(points, told, strict=True):
        for large, more in zip(points, told, strict=True):
            assert not is_within(small, large) or less <= more
    assert min(measured) <= min(told)
    assert max(told) <= max(measured)


@given(POINTS, st.tuples(*[st.floats(0, 10)] * 4))
def test_what_is_monotone_already_stays_as_it_was_measured(
    points: list[CostPoint], costs: tuple[float, ...]
) -> None:
    """Measurements that agree with one another are not smoothed."""
    each, of_context, of_prefill, of_pairs = costs
    measured = [
        1.0
        + each * point.decode
        + of_context * point.context
        + of_prefill * point.prefill
        + of_pairs * point.attention
        for point in points
    ]

    assert monotone(points, measured) == pytest.approx(measured)


def test_a_stall_in_one_repeat_is_outvoted() -> None:
    """The median of three: one slow moment of a shared machine is not a size's cost."""
    small, large = CostPoint(1, 8, 0, 0), CostPoint(2, 8, 0, 0)

    table = cost_table({small: [10.0, 90.0, 11.0], large: [12.0, 13.0, 12.0]}, took_s=0.2)

    assert [row.ms for row in table.rows] == [11.0, 12.0]
    assert [(row.decode, row.context) for row in table.rows] == [(1, 8), (2, 16)]
    assert len(table) == 2
