"""The examples for Envoy Gateway against its definitions, which a real API server holds them to."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from local_cluster.cluster import Cluster, listed
from local_cluster.go_binaries import module_folder
from paceline_api.labels import Manifest
from paceline_testing.gateway_kinds import ENVOY_GATEWAY
from paceline_testing.gateway_objects import EXAMPLES, example

pytestmark = [pytest.mark.cluster]

NAMES = sorted(file.name for file in EXAMPLES.glob("*.yaml"))


def objects(name: str) -> list[Manifest]:
    """Return those of the gateway; tests of their own hold services to ours."""
    return [each for each in example(name) if each["kind"] != "InferenceService"]


KINDS = {each["kind"] for name in NAMES for each in objects(name)}


@pytest.fixture(scope="module")
def definitions(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Bring those of the kinds that the examples have, the Gateway API's among them."""
    charts = module_folder(*ENVOY_GATEWAY) / "charts" / "gateway-helm" / "charts" / "crds" / "crds"
    found = [
        each
        for file in (charts / "gatewayapi-crds.yaml", *(charts / "generated").glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
        if each and each["kind"] == "CustomResourceDefinition"
    ]
    wanted = [each for each in found if each["spec"]["names"]["kind"] in KINDS]
    assert {each["spec"]["names"]["kind"] for each in wanted} == KINDS
    path: Path = tmp_path_factory.mktemp("gateway") / "definitions.json"
    path.write_text(listed(wanted))
    cluster.kubectl("apply", "--server-side", "-f", str(path))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(path), "--timeout=60s")
    yield
    cluster.kubectl("delete", "-f", str(path), "--timeout=60s")


@pytest.mark.usefixtures("definitions")
@pytest.mark.parametrize("name", NAMES)
def test_an_api_server_takes_the_objects_as_they_are(cluster: Cluster, name: str) -> None:
    """No field is unknown, none is missing, and each has a value that may be."""
    for found in objects(name):
        strictly = ("--dry-run=server", "--validate=strict", "--filename=-")
        cluster.kubectl("apply", *strictly, input=json.dumps(found))
