from itertools import islice

from chaos.faults import Fault, Kind, faults


def drawn(seed: int, count: int) -> list[Fault]:
    return list(islice(faults(seed), count))


def test_a_seed_gives_the_same_faults_again() -> None:
    """What was found can be looked for again."""
    assert drawn(7, 20) == drawn(7, 20)
    assert drawn(7, 20) != drawn(8, 20)


def test_each_round_has_every_kind_in_an_order_of_its_own() -> None:
    """A short run misses no kind, and a long one has them after one another in many ways."""
    rounds = [
        [fault.kind for fault in drawn(3, 60)[start : start + 6]] for start in range(0, 60, 6)
    ]

    assert all(sorted(kinds) == sorted(Kind) for kinds in rounds)
    assert len({tuple(kinds) for kinds in rounds}) > 5
