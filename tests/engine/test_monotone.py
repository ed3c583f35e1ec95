"""The profile's times: more of anything never takes less, and no time is made up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.profiling.monotone import monotone
from paceline_engine.profiling.probe_steps import ProbeStep
from paceline_engine.profiling.profile import measured_steps
from paceline_wire import StepFeatures

STEPS = st.lists(
    st.builds(
        StepFeatures,
        decode=st.integers(0, 4),
        prefill=st.integers(0, 3),
        context=st.integers(0, 12),
        attention=st.integers(0, 15),
    ),
    min_size=1,
    max_size=20,
)
TIMES = st.floats(0.01, 1e4)


def is_within(small: StepFeatures, large: StepFeatures) -> bool:
    return (
        small.decode <= large.decode
        and small.context <= large.context
        and small.prefill <= large.prefill
        and small.attention <= large.attention
    )


@given(STEPS, st.data())
def test_more_of_anything_never_takes_less(steps: list[StepFeatures], data: st.DataObject) -> None:
    """A pacer that believed otherwise would fill steps up to make them shorter."""
    measured = [data.draw(TIMES) for _ in steps]

    kept = monotone(steps, measured)

    for small, less in zip(steps, kept, strict=True):
        for large, more in zip(steps, kept, strict=True):
            assert not is_within(small, large) or less <= more
    assert min(measured) <= min(kept)
    assert max(kept) <= max(measured)


@given(STEPS, st.tuples(*[st.floats(0, 10)] * 4))
def test_what_is_monotone_already_stays_as_it_was_measured(
    steps: list[StepFeatures], costs: tuple[float, ...]
) -> None:
    """Measurements that agree with one another are not smoothed."""
    each, of_context, of_prefill, of_pairs = costs
    measured = [
        1.0
        + each * step.decode
        + of_context * step.context
        + of_prefill * step.prefill
        + of_pairs * step.attention
        for step in steps
    ]

    assert monotone(steps, measured) == pytest.approx(measured)


def test_a_stall_in_one_repeat_is_outvoted() -> None:
    """The median of three: one slow moment of a shared machine is not a size's cost."""
    small, large = ProbeStep(1, 8, 0, 0), ProbeStep(2, 8, 0, 0)

    steps = measured_steps({small: [10.0, 90.0, 11.0], large: [12.0, 13.0, 12.0]})

    assert [(step.decode, step.context, step.wall_ms) for step in steps] == [
        (1, 8, 11.0),
        (2, 16, 12.0),
    ]
