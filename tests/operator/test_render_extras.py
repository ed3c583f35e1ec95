"""The headless Service, the monitor and the alerts of one service."""

from typing import Any

from paceline_api.labels import Manifest
from paceline_operator.render.extras import extras
from paceline_testing.services import a_service


def _of(kind: str, **spec: Any) -> Manifest | None:
    (found,) = (one for (of, _), one in extras(a_service(**spec)).items() if of == kind)
    return found


def test_the_pods_have_addresses_of_their_own() -> None:
    """Those that are ready: a client that balances by itself gets no pod that still loads."""
    service = _of("Service")

    assert service is not None
    assert service["metadata"]["name"] == "quick-pods"
    assert service["spec"]["clusterIP"] == "None"
    assert "publishNotReadyAddresses" not in service["spec"]


def test_monitors_come_only_when_asked_for() -> None:
    """A cluster without the Prometheus Operator has no such kinds."""
    assert _of("PodMonitor") is None
    assert _of("PrometheusRule") is None


def test_the_labels_that_a_prometheus_selects_by_are_added() -> None:
    """And none of the operator's own is lost."""
    labels = {"release": "kube", "app.kubernetes.io/managed-by": "me"}
    monitoring = {"podMonitor": True, "rules": True, "labels": labels}
    for kind in ("PodMonitor", "PrometheusRule"):
        found = (_of(kind, monitoring=monitoring) or {})["metadata"]["labels"]

        assert found["release"] == "kube"
        assert found["app.kubernetes.io/managed-by"] == "paceline-operator"


def test_the_admin_port_of_this_services_pods_is_scraped() -> None:
    """The port has metrics whether or not the API asks for a key."""
    spec = (_of("PodMonitor", monitoring={"podMonitor": True}) or {})["spec"]

    assert spec["selector"]["matchLabels"] == {"serving.paceline.dev/service": "quick"}
    assert spec["podMetricsEndpoints"] == [{"port": "admin"}]


def _rules(**spec: Any) -> dict[str, Manifest]:
    found = _of("PrometheusRule", monitoring={"rules": True}, **spec) or {}
    (group,) = found["spec"]["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def test_alerts_ask_for_this_service_and_its_objective() -> None:
    """Ten times the misses are allowed to 99 % as to 99.9 %; nothing may need more than 90 %."""
    model = {"uri": "builtin://x", "servedName": 'a "quoted" name'}
    targets = {"ttft": {"p99": "500ms"}}
    for objective, misses in (("0.999", "0.0144"), ("0.99", "0.144"), ("0.5", "0.9")):
        fast = _rules(model=model, sla=targets | {"objective": objective})["PacelineSLABurningFast"]

        assert fast["expr"].count(f" > {misses}") == 2
        assert r'namespace="default", model_name="a \"quoted\" name"' in fast["expr"]


def test_without_an_sla_there_is_nothing_to_burn() -> None:
    """The engine may be down all the same, or have more to do than it can."""
    assert _rules(sla=None, tuning={"mode": "Fixed"}).keys() == {
        "PacelineEngineDown",
        "PacelineEngineFault",
        "PacelineKVPressure",
        "PacelineQueueGrowing",
        "PacelineRefusals",
        "PacelineServiceDown",
    }
