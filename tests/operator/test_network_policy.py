"""Who gets through the rendered policies, judged by the rules of the API."""

from typing import Any

import pytest

from paceline_api.labels import Manifest, labels
from paceline_operator.render.network_policy import network_policy
from paceline_testing.network_policies import End, allows
from paceline_testing.services import a_service

_POD = End("default", labels("quick"), ports={"http": 8000, "admin": 8001}, ip="10.88.0.7")
_OPERATOR = End(
    "paceline-system",
    {"app.kubernetes.io/part-of": "paceline", "app.kubernetes.io/component": "operator"},
)
_NEIGHBOUR = End("default", {"app": "chat"})
_SIBLING = End("default", labels("other"))
_ELSEWHERE = End("team", {"app": "ui"}, {"team": "chat"})
_PROMETHEUS = End("monitoring", {"app": "prometheus"}, {"serving.paceline.dev/metrics": "allowed"})
_OUTSIDE = End(ip="203.0.113.7")
_DNS = End("kube-system", {"k8s-app": "kube-dns"}, ip="10.96.0.10")
_REMOTE: dict[str, Any] = {"model": {"uri": "hf://a/b", "revision": "c"}}


def _policies(**spec: Any) -> list[Manifest]:
    found = network_policy(a_service(**spec), operator_namespace="paceline-system")
    return [] if found is None else [found]


@pytest.mark.parametrize(
    ("client", "may_call", "may_administer"),
    [
        (_NEIGHBOUR, True, False),
        (_SIBLING, True, False),
        (_ELSEWHERE, False, False),
        (_OUTSIDE, False, False),
        (_OPERATOR, False, True),
        (End("paceline-system", {"app": "other"}), False, False),
        (End("team", _OPERATOR.labels), False, False),
        (_PROMETHEUS, False, True),
    ],
    ids=[
        "own namespace",
        "another service",
        "another namespace",
        "outside",
        "operator",
        "beside the operator",
        "who looks like the operator",
        "Prometheus",
    ],
)
def test_a_service_is_for_its_own_namespace(
    client: End, *, may_call: bool, may_administer: bool
) -> None:
    """Unless it says otherwise; the admin port is for the operator and for scrapers."""
    policies = _policies()

    assert allows(policies, client, _POD, 8000) is may_call
    assert allows(policies, client, _POD, 8002) is may_call
    assert allows(policies, client, _POD, 8001) is may_administer
    assert not allows(policies, client, _POD, 22)


@pytest.mark.parametrize(
    ("allow_from", "allowed"),
    [
        ([], ()),
        ([{}], (_NEIGHBOUR,)),
        ([{"namespaceLabels": {"team": "chat"}}], (_ELSEWHERE,)),
        ([{}, {"namespaceLabels": {"team": "chat"}}], (_NEIGHBOUR, _ELSEWHERE)),
        ([{"podLabels": {"app": "chat"}}], (_NEIGHBOUR,)),
        ([{"namespaceLabels": {}}], (_NEIGHBOUR, _ELSEWHERE)),
        ([{"namespaceLabels": {}, "podLabels": {"app": "ui"}}], (_ELSEWHERE,)),
        ([{"cidr": "203.0.113.0/24"}], (_OUTSIDE,)),
        ([{"cidr": "198.51.100.0/24"}], ()),
        ([{"cidr": "0.0.0.0/0"}], (_NEIGHBOUR, _ELSEWHERE, _OUTSIDE)),
        ([{"cidr": "::/0"}], (_NEIGHBOUR, _ELSEWHERE, _OUTSIDE)),
    ],
    ids=lambda value: str(value) if isinstance(value, list) else None,
)
def test_callers_can_be_named(allow_from: list[Manifest], allowed: tuple[End, ...]) -> None:
    """The list says all: an empty one is nobody, 0.0.0.0/0 is everyone."""
    policies = _policies(network={"allowFrom": allow_from})

    everyone = (_NEIGHBOUR, _ELSEWHERE, _OUTSIDE)
    let_in = [one for one in everyone if allows(policies, one, _POD, 8000)]

    assert let_in == [*allowed]
    assert allows(policies, _OPERATOR, _POD, 8001)
    assert not allows(policies, _NEIGHBOUR, _POD, 8001)


@pytest.mark.parametrize(
    "uri", ["builtin://x", "oci://x/y:1", "pvc://claim/path", "file:///models/x"]
)
def test_a_pod_that_downloads_nothing_reaches_nobody(uri: str) -> None:
    """Nor the DNS: a name is a message, too."""
    policies = _policies(model={"uri": uri})

    assert not allows(policies, _POD, _DNS, 53, "UDP")
    assert not allows(policies, _POD, _OUTSIDE, 443)
    assert not allows(policies, _POD, _NEIGHBOUR, 8000)


@pytest.mark.parametrize(
    "spec",
    [
        _REMOTE,
        {
            "engine": {
                "speculative": {
                    "method": "Draft",
                    "draftModelUri": "hf://a/b",
                    "draftModelRevision": "c",
                }
            }
        },
        {
            "engine": {"lora": {"maxAdapters": 1}},
            "adapters": [{"name": "x", "uri": "hf://a/b", "revision": "c"}],
        },
    ],
    ids=["model", "draft", "adapter"],
)
def test_a_model_of_the_hub_needs_names_and_https(spec: dict[str, Any]) -> None:
    """And no other port."""
    policies = _policies(**spec)

    assert allows(policies, _POD, _DNS, 53, "UDP")
    assert allows(policies, _POD, _DNS, 53, "TCP")
    assert allows(policies, _POD, _OUTSIDE, 443)
    assert not allows(policies, _POD, _OUTSIDE, 80)
    assert not allows(policies, _POD, _OUTSIDE, 443, "UDP")


@pytest.mark.parametrize(
    ("name", "value", "port"),
    [
        ("HTTPS_PROXY", "http://proxy.corp:3128", 3128),
        ("https_proxy", "proxy.corp:8080", 8080),
        ("HF_ENDPOINT", "http://mirror.corp", 80),
        ("HF_ENDPOINT", "https://mirror.corp:8443/hub", 8443),
    ],
)
def test_a_mirror_or_proxy_of_the_spec_can_be_reached(name: str, value: str, port: int) -> None:
    """It may listen anywhere."""
    policies = _policies(**_REMOTE, podOverrides={"env": [{"name": name, "value": value}]})

    assert allows(policies, _POD, _OUTSIDE, port)
    assert not allows(policies, _POD, _OUTSIDE, 22)


def test_an_endpoint_that_cannot_be_read_opens_nothing() -> None:
    """The engine says what is wrong with it."""
    env = [{"name": "HTTPS_PROXY", "value": "http://proxy:many"}, {"name": "OTHER", "value": "x:9"}]
    policies = _policies(**_REMOTE, podOverrides={"env": env})

    assert not allows(policies, _POD, _OUTSIDE, 9)
    assert allows(policies, _POD, _OUTSIDE, 443)


def test_one_line_restores_what_0_2_did() -> None:
    """Everyone may call, and pods may call everyone; the admin port stays closed."""
    network = {"allowFrom": [{"cidr": "0.0.0.0/0"}], "egress": "Anywhere"}
    policies = _policies(network=network)

    assert allows(policies, _OUTSIDE, _POD, 8000)
    assert allows(policies, _POD, _OUTSIDE, 25)
    assert not allows(policies, _ELSEWHERE, _POD, 8001)


def test_without_a_policy_nothing_is_closed() -> None:
    """The cluster's own policies decide."""
    assert _policies(network={"policy": "None"}) == []
