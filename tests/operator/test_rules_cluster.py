"""The real API server takes and refuses what the offline validation takes and refuses."""

import json
import subprocess
from collections.abc import Iterator
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings

from local_cluster.cluster import Cluster
from paceline_api import schema
from paceline_api.labels import Manifest
from paceline_api.validate import InvalidManifestError, validate
from paceline_testing.drawn_manifests import manifests
from paceline_testing.invalid_manifests import CASES, Case, failing, passing
from paceline_testing.services import a_manifest
from paceline_testing.waiting import wait_until

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


_GROUP = "ratchet.paceline.dev"


def _without_rules(node: object, about: str) -> object:
    """The schema before the rules that speak of something were added."""
    if isinstance(node, dict):
        found = {key: _without_rules(value, about) for key, value in node.items()}
        if rules := node.get("x-kubernetes-validations"):
            found["x-kubernetes-validations"] = [r for r in rules if about not in r["rule"]]
        return found
    return [_without_rules(value, about) for value in node] if isinstance(node, list) else node


@pytest.fixture
def later_definition(control_plane: Cluster) -> Iterator[Manifest]:
    """Our definition under a group of its own, which no operator watches."""
    definition = deepcopy(schema.definition())
    definition["metadata"]["name"] = f"inferenceservices.{_GROUP}"
    definition["spec"]["group"] = _GROUP
    definition["spec"]["names"].pop("shortNames")
    yield definition
    name = f"crd/{definition['metadata']['name']}"
    control_plane.kubectl("delete", name, "--ignore-not-found", "--timeout=60s")


@pytest.mark.parametrize(
    ("about", "sentence", "stored", "fault"),
    [
        (
            "HostPath",
            "must be EmptyDir or PVC",
            {"model": {"uri": "builtin://x", "cache": {"type": "HostPath"}}},
            {"model": {"cache": {"sizeLimit": "1Gi"}}},
        ),
        (
            "s3://",
            "s3:// is not served by this version",
            {"model": {"uri": "s3://bucket/model"}},
            {"model": {"servedName": "another"}},
        ),
    ],
    ids=["HostPath", "s3"],
)
def test_a_stored_object_outlives_a_new_rule(
    control_plane: Cluster,
    later_definition: Manifest,
    *,
    about: str,
    sentence: str,
    stored: Manifest,
    fault: Manifest,
) -> None:
    """The API server asks a rule only where the part that it judges has changed."""
    send = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    control_plane.kubectl(*send, input=json.dumps(_without_rules(later_definition, about)))
    manifest: Manifest = a_manifest("old", **stored) | {"apiVersion": f"{_GROUP}/v1alpha1"}
    create = ("create", "-f", "-")
    wait_until(
        lambda: control_plane.try_kubectl(*create, input=json.dumps(manifest)).returncode == 0,
        within_s=60,
    )
    control_plane.kubectl(*send, input=json.dumps(later_definition))
    manifest["metadata"]["name"] = "new"
    dry = (*create, "--dry-run=server")
    wait_until(
        lambda: sentence in control_plane.try_kubectl(*dry, input=json.dumps(manifest)).stderr,
        within_s=60,
    )
    patch = ("patch", f"inferenceservices.{_GROUP}/old", "--type=merge", "-p")

    elsewhere = control_plane.try_kubectl(*patch, json.dumps({"spec": {"replicas": 2}}))
    status = control_plane.try_kubectl(
        *patch, json.dumps({"status": {"replicas": 2}}), "--subresource=status"
    )
    within = control_plane.try_kubectl(*patch, json.dumps({"spec": fault}))

    assert elsewhere.returncode == 0, elsewhere.stderr
    assert status.returncode == 0, status.stderr
    assert within.returncode != 0
    assert sentence in within.stderr


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=manifests())
def test_the_api_server_and_we_agree_on_any_manifest(
    control_plane: Cluster, drawn: Manifest
) -> None:
    """What our models take is taken there, and what they refuse is refused."""
    try:
        validate(drawn)
        refusal = ""
    except InvalidManifestError as problem:
        refusal = str(problem)

    answer = _send(control_plane, drawn)

    assert (answer.returncode == 0) == (refusal == ""), f"{answer.stderr}\n{refusal}"
