import json
from datetime import UTC, datetime
from typing import Any

import pytest

from chaos import audit
from chaos.audit import Findings

ACCOUNT = "system:serviceaccount:chaos-system:paceline"


def line(
    pod: str,
    resource: str,
    at: tuple[float, float],
    *,
    verb: str = "patch",
    code: int = 200,
    query: str = "",
    account: str = ACCOUNT,
) -> str:
    """One event of the log: a request that was received and answered at these seconds."""
    began, ended = (datetime.fromtimestamp(second, UTC).isoformat() for second in at)
    event: dict[str, Any] = {
        "verb": verb,
        "requestURI": f"/apis/x/{resource}/n{query}",
        "user": {
            "username": account,
            "extra": {"authentication.kubernetes.io/pod-name": [pod]},
        },
        "objectRef": {"resource": resource, "name": "n"},
        "responseStatus": {"code": code},
        "requestReceivedTimestamp": began,
        "stageTimestamp": ended,
    }
    return json.dumps(event)


def lease(pod: str, at: float) -> str:
    return line(pod, "leases", (at, at + 0.1), verb="update")


def find(*lines: str) -> Findings:
    return audit.find(lines, account=ACCOUNT)


def test_writes_of_one_leader_after_the_other_are_right() -> None:
    found = find(
        lease("a", 0.0),
        line("a", "services", (1.0, 1.1)),
        lease("b", 20.0),
        line("b", "services", (21.0, 21.1)),
        lease("a", 40.0),
        line("a", "services", (41.0, 41.1)),
    )

    assert found == Findings(num_writes=3, num_leaders=2, by_two=(), at_handover=())


def test_a_write_while_another_holds_the_lease_is_found() -> None:
    """However long ago it took it: it holds until somebody else does."""
    found = find(
        lease("a", 0.0),
        lease("b", 20.0),
        line("a", "deployments", (100.0, 100.1)),
        line("b", "services", (101.0, 101.1)),
    )

    assert [(write.pod, write.resource) for write in found.by_two] == [("a", "deployments")]


def test_a_write_under_way_at_a_handover_is_counted_apart() -> None:
    """The log does not tell which of them was stored first."""
    found = find(lease("a", 0.0), line("a", "services", (19.0, 21.0)), lease("b", 20.0))

    assert found.by_two == ()
    assert [write.pod for write in found.at_handover] == ["a"]


@pytest.mark.parametrize(
    "harmless",
    [
        line("a", "services", (30.0, 30.1), code=409),
        line("a", "services", (30.0, 30.1), verb="get"),
        line("a", "services", (30.0, 30.1), query="?dryRun=All"),
        line("a", "tokenreviews", (30.0, 30.1), verb="create"),
        line("a", "services", (30.0, 30.1), account="system:serviceaccount:x:y"),
        line("a", "services", (30.0, 30.1))[:-20],
    ],
    ids=["refused", "read", "dry", "question", "another account", "unfinished"],
)
def test_what_stores_nothing_of_the_operators_is_no_write(harmless: str) -> None:
    found = find(lease("a", 0.0), line("a", "services", (1.0, 1.1)), lease("b", 20.0), harmless)

    assert found.by_two == ()
    assert found.num_writes == 1


def test_a_log_without_the_operators_writes_proves_nothing() -> None:
    """An empty log must not read as no double write."""
    with pytest.raises(ValueError, match="no writes"):
        find(line("a", "services", (1.0, 1.1)))
    with pytest.raises(ValueError, match="no writes"):
        find(lease("a", 1.0))
