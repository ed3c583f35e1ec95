"""The examples for KEDA against its own definitions, which a real API server holds them to."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from local_cluster.cluster import Cluster
from local_cluster.go_binaries import module_folder
from paceline_api.labels import Manifest
from paceline_api.schema import FILE

pytestmark = [pytest.mark.cluster]

ROOT = Path(__file__).parents[2]
EXAMPLES = ["keda.yaml", "keda-from-zero.yaml", "keda-without-prometheus.yaml"]
KEDA = (
    "github.com/kedacore/keda/v2",
    "v2.21.0",
    "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps=",
)


def scaled_objects(name: str) -> list[Manifest]:
    documents = yaml.safe_load_all((ROOT / "examples" / name).read_text())
    return [each for each in documents if each["kind"] == "ScaledObject"]


@pytest.fixture(scope="module")
def keda() -> Path:
    """Return KEDA's sources; nothing of them is built."""
    return module_folder(*KEDA)


@pytest.fixture(scope="module")
def definition(cluster: Cluster, keda: Path) -> Iterator[None]:
    path = keda / "config" / "crd" / "bases" / "keda.sh_scaledobjects.yaml"
    cluster.kubectl("apply", "--server-side", "-f", str(path))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(path), "--timeout=60s")
    yield
    cluster.kubectl("delete", "-f", str(path), "--timeout=60s")


@pytest.mark.usefixtures("definition")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_api_server_takes_the_scaled_object_as_it_is(cluster: Cluster, name: str) -> None:
    """No field is unknown, none is missing, and each has a value that may be."""
    for found in scaled_objects(name):
        strictly = ("--dry-run=server", "--validate=strict", "--filename=-")
        cluster.kubectl("apply", *strictly, input=json.dumps(found))


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_trigger_has_parameters_that_its_scaler_knows(keda: Path, name: str) -> None:
    """The definition leaves `metadata` open; KEDA lists what each scaler reads of it."""
    schema = json.loads((keda / "schema" / "generated" / "scalers-schema.json").read_text())
    scalers = {
        scaler["type"]: {parameter["name"] for parameter in scaler["parameters"]}
        for scaler in schema["scalers"]
    }

    triggers = [each for found in scaled_objects(name) for each in found["spec"]["triggers"]]
    assert triggers
    for trigger in triggers:
        assert set(trigger["metadata"]) <= scalers[trigger["type"]]


def test_what_is_scaled_has_the_subresource_that_keda_writes() -> None:
    """KEDA and Kubernetes' autoscaler know replicas, their number and their pods by `/scale`."""
    definition = yaml.safe_load((ROOT / "crds" / FILE).read_text())
    (version,) = (each for each in definition["spec"]["versions"] if each["storage"])

    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"
    for name in EXAMPLES:
        for found in scaled_objects(name):
            target = found["spec"]["scaleTargetRef"]
            group = definition["spec"]["group"]
            assert target["apiVersion"] == f"{group}/{version['name']}"
            assert target["kind"] == definition["spec"]["names"]["kind"]
