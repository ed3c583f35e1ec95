"""Whom the operator's own policy lets in, and where it lets the operator go."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python.chart import Chart

from paceline_api.labels import labels
from paceline_operator.render.network_policy import network_policy
from paceline_testing.network_policies import End, allows
from paceline_testing.services import a_service

CHART = Path(__file__).parents[2] / "charts" / "paceline"
_API_SERVER = End(ip="192.0.2.1")
_DNS = End("kube-system", {"k8s-app": "kube-dns"})
_PROMETHEUS = End("monitoring", {"app": "prometheus"}, {"serving.paceline.dev/metrics": "allowed"})


def _rendered(**values: Any) -> list[dict[str, Any]]:
    rendered = Chart.load(CHART).render(values, name="pl", namespace="paceline-system")
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return [item for text in texts for item in yaml.safe_load_all(text) if item]


def _policies(**values: Any) -> list[dict[str, Any]]:
    return [item for item in _rendered(**values) if item["kind"] == "NetworkPolicy"]


def _operator() -> End:
    (deployment,) = (item for item in _rendered() if item["kind"] == "Deployment")
    template = deployment["spec"]["template"]
    return End("paceline-system", template["metadata"]["labels"])


def test_metrics_are_for_labelled_namespaces() -> None:
    """A cluster's Prometheus is let in by one label, here as at the pods of services."""
    operator = _operator()

    assert allows(_policies(), _PROMETHEUS, operator, 8080)
    assert not allows(_policies(), End("monitoring", _PROMETHEUS.labels), operator, 8080)
    assert not allows(_policies(), End("paceline-system"), operator, 8080)
    assert not allows(_policies(), _PROMETHEUS, operator, 9000)


def test_more_peers_can_be_named() -> None:
    """Grafana, which reads /decisions."""
    grafana = End("grafana", {"app": "grafana"})
    peer = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "grafana"}},
        "podSelector": {"matchLabels": {"app": "grafana"}},
    }
    policies = _policies(networkPolicy={"ingressFrom": [peer]})

    assert allows(policies, grafana, _operator(), 8080)
    assert not allows(policies, End("grafana", {"app": "other"}), _operator(), 8080)


def test_the_operator_reaches_what_it_needs_and_no_more() -> None:
    """The API server, names, and the pods that it tunes: not their callers' port."""
    operator, pod = _operator(), End("team", labels("quick"))
    policies = _policies()

    assert allows(policies, operator, _API_SERVER, 6443)
    assert allows(policies, operator, _DNS, 53, "UDP")
    assert allows(policies, operator, pod, 8001)
    assert not allows(policies, operator, pod, 8000)
    assert not allows(policies, operator, End("team", {"app": "other"}), 8001)
    assert not allows(policies, operator, _API_SERVER, 22)


def test_both_ends_let_the_operator_reach_a_pod() -> None:
    """The chart's labels are those that the policy of a service looks for."""
    service = network_policy(a_service(), operator_namespace="paceline-system")
    assert service is not None
    pod = End("default", labels("quick"), ports={"http": 8000, "admin": 8001})

    assert allows([*_policies(), service], _operator(), pod, 8001)
    assert not allows([*_policies(), service], End("paceline-system"), pod, 8001)


@pytest.mark.parametrize(("address", "is_reached"), [("192.0.2.1", True), ("192.0.2.2", False)])
def test_the_api_servers_addresses_can_be_named(address: str, *, is_reached: bool) -> None:
    values = {"networkPolicy": {"apiServer": {"cidrs": ["192.0.2.1/32"], "ports": [16443]}}}

    assert allows(_policies(**values), _operator(), End(ip=address), 16443) is is_reached
    assert not allows(_policies(**values), _operator(), End(ip=address), 6443)


def test_named_namespaces_bound_the_pods_that_are_reached() -> None:
    """Their operator has no business with others' services."""
    policies = _policies(watchNamespaces=["team"])

    assert allows(policies, _operator(), End("team", labels("quick")), 8001)
    assert not allows(policies, _operator(), End("other", labels("quick")), 8001)


def test_it_can_be_left_out() -> None:
    assert _policies(networkPolicy={"enabled": False}) == []
