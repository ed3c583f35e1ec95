from dataclasses import replace

import pytest

from chaos.calm import Json, Leader, Seen, Waiting


def pod(name: str, *, ready: bool = True, leaving: bool = False) -> Json:
    return {
        "metadata": {"name": name} | ({"deletionTimestamp": "now"} if leaving else {}),
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {"name": "engine", "containerID": f"c://{name}", "state": {"running": {}}}
            ],
        },
    }


def service(*, ready: bool = True, observed: int = 3) -> Json:
    return {
        "metadata": {"generation": 3},
        "status": {
            "observedGeneration": observed,
            "conditions": [{"type": "Ready", "status": str(ready)}],
        },
    }


LEADER = Leader(process="c://x", is_leading=True, num_rounds=7.0)
SEEN = Seen(service(), [pod("a"), pod("b")], [pod("x"), pod("y")], LEADER)
AFTER_A_ROUND = replace(SEEN, leader=replace(LEADER, num_rounds=8.0))


def test_it_is_calm_once_all_is_there_and_a_round_was_done_since() -> None:
    waiting = Waiting()

    assert waiting.why_not(SEEN) == "the leader has done no tuning round"
    assert waiting.why_not(AFTER_A_ROUND) == ""


def test_rounds_count_for_each_process() -> None:
    """A successor's counter begins at nought, and a former leader's stands high."""
    waiting = Waiting()
    waiting.why_not(SEEN)
    successor = Leader(process="c://y", is_leading=True, num_rounds=9.0)

    assert waiting.why_not(replace(SEEN, leader=successor))
    assert waiting.why_not(replace(SEEN, leader=replace(successor, num_rounds=10.0))) == ""


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (replace(AFTER_A_ROUND, service=service(ready=False)), "service"),
        (replace(AFTER_A_ROUND, service=service(observed=2)), "service"),
        (replace(AFTER_A_ROUND, pods=[pod("a"), pod("b", ready=False)]), "pod"),
        (replace(AFTER_A_ROUND, pods=[pod("a")]), "pod"),
        (replace(AFTER_A_ROUND, pods=[pod("a"), pod("b"), pod("c", leaving=True)]), "pod"),
        (replace(AFTER_A_ROUND, operators=[pod("x")]), "operator"),
        (replace(AFTER_A_ROUND, leader=None), "leads"),
        (replace(AFTER_A_ROUND, leader=replace(LEADER, is_leading=False)), "leads"),
        (replace(AFTER_A_ROUND, deaf="kube-proxy does not watch services"), "kube-proxy"),
    ],
    ids=[
        *("not Ready", "old", "unready", "missing", "leaving", "operator", "nobody"),
        *("stands by", "deaf"),
    ],
)
def test_what_is_missing_is_named(seen: Seen, reason: str) -> None:
    waiting = Waiting()
    waiting.why_not(SEEN)

    assert reason in waiting.why_not(seen)


def test_what_was_killed_must_be_seen_to_be_gone() -> None:
    """The first look after a kill may still show the world before it."""
    waiting = Waiting(killed="c://b")
    waiting.why_not(SEEN)

    assert waiting.why_not(AFTER_A_ROUND) == "what was killed still counts as running"
    replaced = replace(AFTER_A_ROUND, pods=[pod("a"), pod("b2")])
    waiting.why_not(replaced)
    further = replace(LEADER, num_rounds=9.0)
    assert waiting.why_not(replace(replaced, leader=further)) == ""
