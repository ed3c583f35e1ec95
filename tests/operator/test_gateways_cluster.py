"""What the operator writes for gateways, on a real API server with their own definitions."""

from collections.abc import Iterator

import pytest

from local_cluster.cluster import Cluster
from paceline_testing.examples import services_of
from paceline_testing.gateway_kinds import kinds_of_gateways
from paceline_testing.operator_home import Home
from paceline_testing.running_operator import eventually, running_operator

pytestmark = pytest.mark.cluster

_NAMESPACE = "gateways"
_PICKER = {"name": "picker", "port": {"number": 9002}}
# The operator asks for the kinds once a minute, and looks at each service every few seconds.
_NOTICED_WITHIN_S = 180


@pytest.fixture(scope="module")
def home(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    control_plane.kubectl("create", "namespace", _NAMESPACE)
    folder = tmp_path_factory.mktemp("gateways")
    with running_operator(control_plane, _NAMESPACE, folder) as operator:
        yield Home(control_plane, _NAMESPACE, operator)
    control_plane.kubectl("delete", "namespace", _NAMESPACE, "--wait=false")


def test_gateways_are_told_once_their_kinds_are_there(home: Home) -> None:
    """The service does without until then; what is taken back goes, one by one."""
    told = {"gateway": "EnvoyGateway", "inferencePool": {"endpointPickerRef": _PICKER}}
    home.serve("told", api=told)
    missing = home.condition("told", "ExtrasAvailable")
    assert (missing["status"], missing["reason"]) == ("False", "KindMissing")
    assert "BackendTrafficPolicy" in missing["message"]
    assert "InferencePool" in missing["message"]
    assert home.get("deployment", "told")
    assert home.condition("told", "Stalled")["status"] == "False"

    with kinds_of_gateways(home.cluster):
        eventually(
            lambda: home.condition("told", "ExtrasAvailable").get("status") == "True",
            told_by=home.operator.log,
            within_s=_NOTICED_WITHIN_S,
        )
        uid = (home.get("pisvc", "told") or {})["metadata"]["uid"]
        for kind in ("btp", "infpool"):
            (owner,) = (home.get(kind, "told") or {})["metadata"]["ownerReferences"]
            assert owner["uid"] == uid

        home.serve("told", api={"gateway": "EnvoyGateway"})
        home.until(lambda: home.get("infpool", "told") is None)
        assert home.get("btp", "told")
        home.serve("told")
        home.until(lambda: home.get("btp", "told") is None)
        home.until(lambda: home.condition("told", "ExtrasAvailable") == {})


def test_the_example_gets_its_policy_and_keeps_its_pods(home: Home) -> None:
    """Envoy Gateway's own definition takes it strictly; asked for later, it restarts no pod."""
    (service,) = services_of("gateway/service.yaml")
    name, api = service["metadata"]["name"], service["spec"].pop("api")
    home.apply(service)
    before = home.until(lambda: home.get("deployment", name))

    with kinds_of_gateways(home.cluster):
        home.apply(service | {"spec": service["spec"] | {"api": api}})
        policy = eventually(
            lambda: home.get("btp", name), told_by=home.operator.log, within_s=_NOTICED_WITHIN_S
        )
        home.until(lambda: home.reported(name))
        after = home.get("deployment", name) or {}

    assert policy["spec"]["loadBalancer"]["type"] == "BackendUtilization"
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
