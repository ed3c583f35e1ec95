import json

import pytest

from chaos.watches import Watches

HEARING = [
    *(("system:kube-proxy", resource) for resource in ("services", "endpointslices")),
    ("system:node:n1", "pods"),
    *(("system:kube-scheduler", resource) for resource in ("nodes", "pods")),
    *(
        ("system:kube-controller-manager", resource)
        for resource in (
            *("deployments", "replicasets", "pods", "services"),
            *("endpointslices", "nodes", "leases"),
        )
    ),
]


def event(
    user: str,
    resource: str,
    *,
    request: str = "",
    stage: str = "ResponseStarted",
    verb: str = "watch",
    code: int = 200,
) -> str:
    return (
        json.dumps(
            {
                "auditID": request or f"{user} {resource}",
                "stage": stage,
                "verb": verb,
                "user": {"username": user},
                "objectRef": {"resource": resource},
                "responseStatus": {"code": code},
            }
        )
        + "\n"
    )


def hearing() -> Watches:
    watches = Watches()
    watches.take("".join(event(user, resource) for user, resource in HEARING))
    return watches


def test_all_hear_when_every_watch_is_open() -> None:
    assert hearing().missing() == ""


@pytest.mark.parametrize("lacking", HEARING, ids=" ".join)
def test_a_watch_that_ended_is_named(lacking: tuple[str, str]) -> None:
    watches = hearing()

    watches.take(event(*lacking, stage="ResponseComplete"))

    assert watches.missing().endswith(f" does not watch {lacking[1]}")


def test_a_watch_that_was_begun_anew_first_is_open() -> None:
    """Parts end a watch themselves every few minutes; the next may begin before."""
    watches = hearing()

    watches.take(event("system:kube-proxy", "services", request="second"))
    watches.take(event("system:kube-proxy", "services", stage="ResponseComplete"))

    assert watches.missing() == ""


@pytest.mark.parametrize(
    "other",
    [
        event("system:kube-proxy", "services", verb="list"),
        event("system:kube-proxy", "services", code=503),
        event("system:serviceaccount:x:y", "services"),
    ],
    ids=["a list", "refused", "another's"],
)
def test_what_is_no_watch_of_this_part_does_not_count(other: str) -> None:
    watches = hearing()
    watches.take(event("system:kube-proxy", "services", stage="ResponseComplete"))

    watches.take(other)

    assert watches.missing() == "kube-proxy does not watch services"


def test_nothing_is_open_after_the_api_servers_end() -> None:
    """One that is killed logs no end, and may leave half a line, which the next one goes on."""
    watches = hearing()
    watches.take('{"auditID": "hal')

    watches.lose_all()
    lacked = watches.missing()
    whole = "".join(event(user, resource, request=user + resource) for user, resource in HEARING)
    watches.take(whole[:100])
    watches.take(whole[100:])

    assert lacked
    assert watches.missing() == ""
