"""Grammars are compiled in turns: a caller with many does not keep another one waiting."""

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.grammar.turns import Turns


def test_a_newcomer_is_next_but_one() -> None:
    """However many others wait."""
    turns: Turns[str] = Turns()
    for number in range(100):
        turns.add(f"greedy {number}", caller="greedy")
    first = turns.take()
    turns.add("modest", caller="modest")

    assert first == ("greedy 0", "greedy")
    assert turns.take() == ("modest", "modest")
    assert turns.take() is None
    turns.done("greedy")
    assert turns.take() == ("greedy 1", "greedy")


def test_who_is_not_told_apart_is_not_held_back() -> None:
    """A service without keys compiles with all its threads."""
    turns: Turns[int] = Turns()
    for number in range(3):
        turns.add(number, caller="")

    assert [turns.take() for _ in range(4)] == [(0, ""), (1, ""), (2, ""), None]


@settings(deadline=None)
@given(moves=st.lists(st.sampled_from(["add a", "add b", "add c", "add ", "take", "done"])))
def test_nothing_is_lost_and_nobody_has_two_in_work(moves: list[str]) -> None:
    """Whatever comes when; each caller's items keep their order."""
    turns: Turns[int] = Turns()
    given: dict[str, list[int]] = {}
    taken: dict[str, list[int]] = {}
    in_work: list[str] = []

    def take() -> bool:
        found = turns.take()
        if found is not None:
            item, caller = found
            assert not caller or caller not in in_work
            taken.setdefault(caller, []).append(item)
            in_work.append(caller)
        return found is not None

    for number, move in enumerate(moves):
        if move == "take":
            take()
        elif move == "done" and in_work:
            turns.done(in_work.pop(0))
        elif move.startswith("add"):
            caller = move.removeprefix("add ")
            given.setdefault(caller, []).append(number)
            turns.add(number, caller=caller)
    while in_work or take():
        while in_work:
            turns.done(in_work.pop())
        take()

    assert taken == given
