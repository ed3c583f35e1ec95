"""What is measured of a back end, and what is made of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.attention.prefill.attention import Scores
from paceline_engine.attention.prefill.timing import LENGTHS, LayerTimes, classes, fastest, unseen

FULL, WINDOWED = Scores(1.0), Scores(1.0, window=8)
SECONDS = st.floats(1e-6, 1.0)
TIMES = st.builds(LayerTimes, SECONDS, SECONDS)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("most", [64, 100, 2048, 8192])
def test_a_class_is_a_step_of_its_length(most: int, is_whole: bool) -> None:
    """As many chunks as a step has tokens for; later ones stand behind a context."""
    for length, chunks in classes(most, is_whole=is_whole):
        assert {chunk.tokens for chunk in chunks} == {length}
        assert all(chunk.is_whole == is_whole for chunk in chunks)
        assert sum(chunk.tokens for chunk in chunks) <= max(length, min(2048, most))
    assert [length for length, _ in classes(most, is_whole=is_whole)] == [
        length for length in LENGTHS if length <= most
    ]


@pytest.mark.parametrize("is_whole", [True, False])
def test_unseen_steps_are_of_lengths_that_no_class_has(is_whole: bool) -> None:
    """Shorter by a little, whole where the class is, and no length in two of them."""
    seen: set[int] = set(LENGTHS)
    for _, chunks in classes(8192, is_whole=is_whole):
        for lengths in unseen(chunks):
            fresh = {chunk.tokens for chunk in lengths}
            assert not fresh & seen
            assert len(fresh) == min(8, len(chunks))
            assert all(chunk.is_whole == is_whole for chunk in lengths)
            assert min(fresh) >= chunks[0].tokens - 8
            seen |= fresh


@given(ours=TIMES, other=TIMES, count=st.integers(1, 80))
def test_another_serves_where_it_takes_at_most_95_per_cent(
    ours: LayerTimes, other: LayerTimes, count: int
) -> None:
    """Of a step's time: its first layer, and all others."""
    chosen = fastest({FULL: ours}, {"other": {FULL: other}}, {FULL: count})

    theirs = other.first_s + (count - 1) * other.again_s
    assert (chosen == "other") == (theirs <= 0.95 * (ours.first_s + (count - 1) * ours.again_s))


@given(
    ours=st.tuples(TIMES, TIMES),
    others=st.dictionaries(st.sampled_from("abcd"), st.tuples(TIMES, TIMES, st.booleans())),
    counts=st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_no_other_would_make_a_step_shorter(
    ours: tuple[LayerTimes, LayerTimes],
    others: dict[str, tuple[LayerTimes, LayerTimes, bool]],
    counts: tuple[int, int],
) -> None:
    """With ours on the layers that one does not serve, whoever is chosen has the shortest step."""
    of_ours = dict(zip((FULL, WINDOWED), ours, strict=True))
    num_layers = dict(zip((FULL, WINDOWED), counts, strict=True))
    times = {
        name: {FULL: full, WINDOWED: windowed} if has_windows else {FULL: full}
        for name, (full, windowed, has_windows) in others.items()
    }

    def step_s(name: str | None) -> float:
        mixed = {**of_ours, **({} if name is None else times[name])}
        return sum(one.step_s(num_layers[layer]) for layer, one in mixed.items())

    chosen = fastest(of_ours, times, num_layers)

    for name, served in times.items():
        instead_s = sum(of_ours[layer].step_s(num_layers[layer]) for layer in served)
        theirs_s = sum(one.step_s(num_layers[layer]) for layer, one in served.items())
        if theirs_s <= 0.95 * instead_s:
            assert chosen is not None
            assert step_s(chosen) <= step_s(name) * (1 + 1e-9)
