"""What gateways are told of one service, and that it fits what the service itself does."""

import re
from pathlib import Path
from typing import Any

import pytest

from paceline_api.labels import LOAD_REPORT_PORT, Manifest
from paceline_api.units import seconds
from paceline_operator.render.children import Surroundings, children
from paceline_operator.render.extras import extras
from paceline_testing.examples import documents_of
from paceline_testing.services import a_service

ROOT = Path(__file__).parents[2]

_PICKER = {"endpointPickerRef": {"name": "picker", "port": {"number": 9002}}}
_AROUND = Surroundings("engine:1", "sidecar:1", "paceline-system")
# https://gateway-api.sigs.k8s.io/geps/gep-2257/
_DURATION = re.compile(r"([0-9]{1,5}(h|m|s|ms)){1,4}")


def _policy(**spec: Any) -> Manifest:
    found = extras(a_service(**spec))["BackendTrafficPolicy", "quick"]
    assert found is not None
    return found


def _pool(**pool: Any) -> Manifest:
    found = extras(a_service(api={"inferencePool": pool}))["InferencePool", "quick"]
    assert found is not None
    return found


def test_gateways_are_told_only_where_it_is_asked_for() -> None:
    """Most clusters have neither kind."""
    rendered = extras(a_service())

    assert rendered["BackendTrafficPolicy", "quick"] is None
    assert rendered["InferencePool", "quick"] is None


def test_the_policy_is_the_examples() -> None:
    """A real Envoy runs with that one; beside it stand the targets and the request timeout."""
    (example,) = documents_of("gateway/balance.yaml")
    wanted, found = example["spec"], _policy(api={"gateway": "EnvoyGateway"})

    assert (found["apiVersion"], found["kind"]) == (example["apiVersion"], example["kind"])
    del wanted["targetRefs"], found["spec"]["targetSelectors"]
    del found["spec"]["timeout"]["http"]["requestTimeout"]
    assert found["spec"] == wanted


def test_the_policy_is_for_routes_with_the_services_label() -> None:
    """The example's route is one of them."""
    service, *others = documents_of("gateway/service.yaml")
    (route,) = (each for each in others if each["kind"] == "HTTPRoute")
    name = service["metadata"]["name"]

    (target,) = _policy(api=service["spec"]["api"])["spec"]["targetSelectors"]
    group, _, _ = route["apiVersion"].partition("/")
    assert (target["group"], target["kind"]) == (group, route["kind"])
    assert target["matchLabels"] == {"serving.paceline.dev/service": "quick"}
    assert route["metadata"]["labels"] == {"serving.paceline.dev/service": name}


@pytest.mark.parametrize("own", ["1s", "1500ms", "60s", "5m", "1h"])
def test_the_service_ends_a_request_before_the_gateway_does(own: str) -> None:
    """Its answer has a reason, and comes with a margin for the way."""
    policy = _policy(api={"gateway": "EnvoyGateway"}, admission={"requestTimeout": own})
    limit = policy["spec"]["timeout"]["http"]["requestTimeout"]

    assert _DURATION.fullmatch(limit)
    assert seconds(limit) >= seconds(own) + 5


def test_the_pool_is_the_services_pods_on_the_port_that_they_serve() -> None:
    """The Service's port is looked up by name; a pool takes the number that the pods have."""
    *_, deployment = children(a_service(), _AROUND, "hash").wanted
    template = deployment["spec"]["template"]
    containers = template["spec"]["initContainers"]
    ports = {port["name"]: port for each in containers for port in each.get("ports", ())}
    spec = _pool(**_PICKER)["spec"]

    assert spec["targetPorts"] == [{"number": ports["http"]["containerPort"]}]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()


def test_the_pools_picker_is_passed_on() -> None:
    """By the names that an InferencePool has for it, with what it says where nothing is said."""
    named = {"name": "picker", "port": {"number": 9002}}

    assert _pool(**_PICKER)["spec"]["endpointPickerRef"] == named | {"failureMode": "FailClose"}
    asked = named | {"failureMode": "FailOpen"}
    assert _pool(endpointPickerRef=asked)["spec"]["endpointPickerRef"] == asked


def test_the_policy_asks_the_port_that_the_sidecars_image_opens() -> None:
    """It is no part of the pod's template, which a newer operator leaves as it is."""
    image = (ROOT / "deploy" / "docker" / "sidecar.Dockerfile").read_text().splitlines()

    assert f"ENV PACELINE_SIDECAR_LOAD_REPORT_PORT={LOAD_REPORT_PORT}" in image
