"""The real API server takes and refuses what the offline validation takes and refuses."""

import json
import subprocess

import pytest

from local_cluster.cluster import Cluster
from paceline_api.labels import Manifest
from paceline_testing.invalid_manifests import CASES, Case, failing, passing
from paceline_testing.services import a_manifest

pytestmark = pytest.mark.cluster

each_rule = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)

_URL = (
    "/apis/serving.paceline.dev/v1alpha1/namespaces/default/inferenceservices"
    "?dryRun=All&fieldValidation=Strict"
)


def _send(cluster: Cluster, manifest: Manifest) -> subprocess.CompletedProcess[str]:
    """Post as it is: kubectl's own validation would answer before the server does."""
    return cluster.try_kubectl("create", "--raw", _URL, "-f", "-", input=json.dumps(manifest))


@each_rule
def test_the_api_server_takes_a_good_manifest(control_plane: Cluster, case: Case) -> None:
    """No rule refuses what it should allow, and no rule is too costly to ask."""
    answer = _send(control_plane, passing(case))

    assert answer.returncode == 0, answer.stderr


@each_rule
def test_the_api_server_names_the_field_of_a_bad_manifest(
    control_plane: Cluster, case: Case
) -> None:
    """The sentence that a person reads in the terminal."""
    answer = _send(control_plane, failing(case))

    assert answer.returncode != 0
    assert case.field in answer.stderr
    assert case.sentence in answer.stderr


def test_the_api_server_refuses_a_name_that_no_service_can_have(control_plane: Cluster) -> None:
    """Its children would fail one by one, long after `kubectl apply` has said yes."""
    answer = _send(control_plane, a_manifest("with.dot"))

    assert "metadata.name must be" in answer.stderr


def test_kubectl_names_the_field(control_plane: Cluster) -> None:
    """The same through `kubectl apply`, whole."""
    manifest = a_manifest("named", sla={"ttft": {"p99": "0.5ms"}})
    answer = control_plane.try_kubectl("apply", "-f", "-", input=json.dumps(manifest))

    assert 'The InferenceService "named" is invalid' in answer.stderr
    assert "spec.sla.ttft.p99" in answer.stderr
    assert "must lie between 1ms and 600s" in answer.stderr
