"""The examples for a gateway and for KEDA fit together, in the order of docs/gateways.md."""

import re
from typing import Any

import pytest

from paceline_api.units import seconds
from paceline_sidecar.settings import SidecarSettings
from paceline_testing.examples import EXAMPLES, documents_of

GATEWAY = "gateway/gateway.yaml"
SERVICE = "gateway/service.yaml"
IN_ORDER = [SERVICE, "gateway/from-zero.yaml"]
ROUTES = sorted(f"gateway/{file.name}" for file in (EXAMPLES / "gateway").glob("*.yaml"))
POLICIES = [f"gateway/{name}.yaml" for name in ("balance", "fallback", "from-zero", "sessions")]
KEDA = ["keda.yaml", "keda-from-zero.yaml", "keda-without-prometheus.yaml"]
_SHIFTED_BELOW, _SHIFT = 1024, 10000
"""As Envoy Gateway 1.9 shifts ports that only root may open (internal/gatewayapi/translator.go)."""


def of_kind(name: str, kind: str) -> list[dict[str, Any]]:
    return [each for each in documents_of(name) if each["kind"] == kind]


def the_service() -> str:
    (service,) = of_kind(SERVICE, "InferenceService")
    return str(service["metadata"]["name"])


@pytest.mark.parametrize("name", ROUTES)
def test_every_route_names_the_one_gateway(name: str) -> None:
    """Only gateway.yaml has it, so that no other example must be applied for it."""
    (gateway,) = of_kind(GATEWAY, "Gateway")
    parents = [
        parent["name"]
        for route in of_kind(name, "HTTPRoute")
        for parent in route["spec"]["parentRefs"]
    ]

    assert set(parents) <= {gateway["metadata"]["name"]}
    assert name == GATEWAY or not of_kind(name, "Gateway")


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_is_applied_in_order_leads_to_the_service_alone(name: str) -> None:
    """A route to a service that nobody creates would fail its share of the requests."""
    rules = [rule for route in of_kind(name, "HTTPRoute") for rule in route["spec"]["rules"]]
    backends = {reference["name"] for rule in rules for reference in rule["backendRefs"]}

    assert backends == {the_service()}


@pytest.mark.parametrize("name", POLICIES)
def test_another_pod_gets_what_one_cannot_take_and_nobody_else(name: str) -> None:
    """A 503 comes before any part of an answer; a 429 is the client's to keep."""
    (policy,) = of_kind(name, "BackendTrafficPolicy")
    (balanced,) = of_kind("gateway/balance.yaml", "BackendTrafficPolicy")

    assert policy["spec"]["retry"]["retryOn"] == balanced["spec"]["retry"]["retryOn"]


@pytest.mark.parametrize("name", POLICIES)
def test_the_gateway_leaves_idle_connections_before_the_pod_does(name: str) -> None:
    """A request that meets a closing connection would fail, and may not be sent twice."""
    (policy,) = of_kind(name, "BackendTrafficPolicy")
    idle_s = seconds(policy["spec"]["timeout"]["http"]["connectionIdleTimeout"])

    assert idle_s < SidecarSettings.model_fields["keep_alive_s"].default


@pytest.mark.parametrize("name", KEDA)
def test_keda_scales_the_service_behind_the_gateway(name: str) -> None:
    """It is the target, and the one whose recommendation is read; no Git holds its replicas."""
    (service,) = of_kind(SERVICE, "InferenceService")
    (scaled,) = of_kind(name, "ScaledObject")
    texts = [str(trigger["metadata"]) for trigger in scaled["spec"]["triggers"]]
    read = {found for text in texts for found in re.findall(r'inferenceservice="([^"]+)"', text)}

    assert {scaled["metadata"]["name"], scaled["spec"]["scaleTargetRef"]["name"]} == {the_service()}
    assert read == {the_service()}
    assert "replicas" not in service["spec"]


def test_kubernetes_own_autoscaler_scales_the_service_behind_the_gateway() -> None:
    """By a metric that the example of prometheus-adapter serves."""
    (hpa,), (values,) = documents_of("hpa.yaml"), documents_of("prometheus-adapter.yaml")
    (metric,) = hpa["spec"]["metrics"]
    (rule,) = values["rules"]["custom"]

    named = (hpa["metadata"], hpa["spec"]["scaleTargetRef"], metric["object"]["describedObject"])
    assert {each["name"] for each in named} == {the_service()}
    assert metric["object"]["metric"]["name"] in rule["seriesQuery"]


def test_one_prometheus_is_named_everywhere() -> None:
    """Whoever changes its address looks for one."""
    (values,) = documents_of("prometheus-adapter.yaml")
    asked = [
        trigger["metadata"]["serverAddress"]
        for name in KEDA
        for scaled in of_kind(name, "ScaledObject")
        for trigger in scaled["spec"]["triggers"]
        if trigger["type"] == "prometheus"
    ]

    assert set(asked) == {"{url}:{port}".format(**values["prometheus"])}


def test_what_wakes_the_service_is_counted_by_the_gateways_listener() -> None:
    """Envoy names its counts by the port that it listens on itself."""
    (gateway,) = of_kind(GATEWAY, "Gateway")
    (listener,) = gateway["spec"]["listeners"]
    port = listener["port"] + (_SHIFT if listener["port"] < _SHIFTED_BELOW else 0)
    (scaled,) = of_kind("keda-from-zero.yaml", "ScaledObject")
    asked = next(each for each in scaled["spec"]["triggers"] if each["name"] == "asked")

    assert f'envoy_http_conn_manager_prefix="http-{port}"' in asked["metadata"]["query"]
