"""Replicas come to have as many shards as each other, and then leave them alone."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.sharding.shares import may_give, shard_of, to_ask_for

_replicas = st.sampled_from(["a", "b", "c"])


def test_services_are_spread_over_shards_by_their_uid() -> None:
    """Evenly enough, and always in the same way."""
    found = Counter(shard_of(f"0a1b-{number}", 4) for number in range(4000))

    assert set(found) == {0, 1, 2, 3}
    assert all(900 < count < 1100 for count in found.values())


def test_who_has_two_less_asks() -> None:
    """One less is a share as good as any."""
    assert to_ask_for(["a", "a"], "b") in {0, 1}
    assert to_ask_for(["a", "a", "b"], "b") is None
    assert to_ask_for(["a"], "b") is None
    assert to_ask_for(["a", "a", "a", "b", "b", "b"], "c") is not None


def test_nobody_asks_for_what_is_free() -> None:
    """Whoever looks at it takes it."""
    assert to_ask_for(["", "", ""], "b") is None
    assert to_ask_for([], "b") is None


@settings(deadline=None)
@given(holders=st.lists(_replicas, max_size=16), me=_replicas)
def test_what_is_asked_for_may_be_given(holders: list[str], me: str) -> None:
    """By a holder that knows the same."""
    number = to_ask_for(holders, me)
    if number is not None:
        assert holders[number] != me
        assert may_give(holders, holders[number], me)


@settings(deadline=None)
@given(holders=st.lists(_replicas, max_size=16), turns=st.lists(_replicas, min_size=60))
def test_shares_become_even_and_stay(holders: list[str], turns: list[str]) -> None:
    """Whoever looks when; a shard never moves without need."""
    for me in [*turns, *"abc" * 16]:
        number = to_ask_for(holders, me)
        if number is not None:
            holders[number] = me

    assert all(to_ask_for(holders, me) is None for me in "abc")
    counts = [holders.count(me) for me in "abc"]
    assert max(counts) - min(counts) <= 1
