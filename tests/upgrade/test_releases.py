"""From the version before to this one and back, by a real Helm."""

import json
import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from helm_python import HelmError
from helm_python.chart import Chart

from local_cluster.cluster import Cluster
from paceline_api.schema import definition
from paceline_operator.definition import unknown_to, upgraded
from paceline_testing.job_pods import as_account
from paceline_testing.releases import CHART, NAME, Releases, releases

BEFORE = Path(__file__).parent / "0.2.0"
CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
BEFORE_CHART = BEFORE / "chart"
SERVICES = BEFORE / "services.yaml"
BEFORE_DEFINITION = BEFORE_CHART / "crds" / "inferenceservices.yaml"

in_a_cluster = pytest.mark.cluster


@pytest.fixture
def release(cluster: Cluster, tmp_path: Path) -> Iterator[Releases]:
    with releases(cluster, "releases", tmp_path) as found:
        yield found


def spec_of(release: Releases) -> Any:
    return release.definition()["spec"]["versions"]


@in_a_cluster
def test_an_upgrade_brings_the_definition_along(release: Releases) -> None:
    """It came from `crds/`, so Helm neither owns nor touches it; it is the same object after."""
    release.install(BEFORE_CHART)
    before = release.definition()
    release.upgrade(CHART)

    after = release.definition()
    is_older = before["spec"]["versions"] != definition()["spec"]["versions"]
    assert after["spec"]["versions"] == definition()["spec"]["versions"]
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert len(release.said) == is_older
    left = release.kubectl("get", "job,serviceaccount,clusterrole,clusterrolebinding", "-o", "name")
    assert "crd-upgrade" not in left


@in_a_cluster
def test_a_definition_that_is_the_charts_own_starts_no_job(release: Releases) -> None:
    """Neither a first installation nor an upgrade waits for an image that it does not need."""
    release.install(CHART)
    release.upgrade(CHART, logLevel="debug")

    assert release.said == []


@in_a_cluster
def test_stored_services_pass_an_upgrade_as_they_are(release: Releases) -> None:
    """Each is read as it was written, and applied again without an error or a change."""
    release.install(BEFORE_CHART)
    release.kubectl("apply", "-f", str(SERVICES))
    before = release.services()
    release.upgrade(CHART)

    answer = release.kubectl("apply", "-f", str(SERVICES))
    after = release.services()
    assert len(before) == len([*yaml.safe_load_all(SERVICES.read_text())])
    assert _kept(before, after)
    assert {line.split()[-1] for line in answer.splitlines()} == {"unchanged"}
    for service in after.values():
        release.kubectl("replace", "-f", "-", input=json.dumps(service))
    assert {name: found["metadata"]["generation"] for name, found in after.items()} == {
        name: found["metadata"]["generation"] for name, found in before.items()
    }


def _kept(before: Any, after: Any) -> bool:
    """Whether every value is still there; a field that is new may have a default beside it."""
    if isinstance(before, dict):
        return all(
            key in {"managedFields", "resourceVersion"}
            or (key in after and _kept(value, after[key]))
            for key, value in before.items()
        )
    return bool(before == after)


@in_a_cluster
def test_a_rollback_leaves_the_newer_definition(release: Releases) -> None:
    """What services have stored in its fields would be dropped under the older one."""
    release.install(BEFORE_CHART)
    release.upgrade(CHART)
    newer = spec_of(release)
    release.helm.rollback(NAME, version=1)

    assert len(release.helm.history(NAME)) == 3
    assert spec_of(release) == newer


@in_a_cluster
def test_an_uninstallation_keeps_definition_and_services(release: Releases) -> None:
    """Another installation finds them, whatever its name, and brings the definition along."""
    release.install(BEFORE_CHART)
    release.kubectl("apply", "-f", str(SERVICES))
    stored = release.services()
    release.helm.uninstall(NAME)

    assert set(release.services()) == set(stored)
    release.helm.install(CHART, "another", {}, timeout=240)
    assert spec_of(release) == definition()["spec"]["versions"]
    assert _kept(stored, release.services())


@in_a_cluster
def test_without_rights_on_definitions_the_chart_leaves_them_alone(
    release: Releases, tmp_path: Path
) -> None:
    """Then the definition is another's to upgrade, and the operator says `CRDOutdated`."""
    team = {"watchNamespaces": [release.namespace], "aggregateRoles": False}
    release.install(BEFORE_CHART, **team)
    older = spec_of(release)
    limited = _of_one_namespace(release, tmp_path)

    with limited.helm(release.namespace) as helm:
        with pytest.raises(HelmError, match="customresourcedefinitions"):
            helm.upgrade(CHART, NAME, team, timeout=60)
        helm.upgrade(CHART, NAME, team | {"crds": {"upgrade": False}}, timeout=60)
    assert spec_of(release) == older
    assert release.said == []


def _of_one_namespace(release: Releases, folder: Path) -> Cluster:
    """Log in as somebody who may do everything in one namespace and nothing else."""
    account = f"--serviceaccount={release.namespace}:team"
    everything = ("--verb=*", "--resource=*.*")
    release.kubectl("create", "serviceaccount", "team")
    release.kubectl("create", "role", "team", *everything)
    release.kubectl("create", "rolebinding", "team", "--role=team", account)
    return as_account(release.cluster, release.namespace, "team", folder)


@in_a_cluster
def test_what_helm_template_prints_can_be_applied_and_applied_again(release: Releases) -> None:
    """As Argo CD does it: definition and objects together, and no Job among them."""
    objects = [yaml.safe_load(BEFORE_DEFINITION.read_text()), *rendered(BEFORE_CHART)]
    newer = [definition(), *rendered(CHART)]
    apply = ("apply", "--server-side", "--force-conflicts", "-f", "-")
    release.kubectl(*apply, input=yaml.safe_dump_all(objects))
    release.kubectl(*apply, input=yaml.safe_dump_all(newer))
    release.kubectl(*apply, input=yaml.safe_dump_all(newer))

    assert spec_of(release) == definition()["spec"]["versions"]
    assert "Job" not in {found["kind"] for found in newer}


def rendered(chart: Path) -> list[dict[str, Any]]:
    texts = Chart.load(chart).render({}, name=NAME, namespace="releases")
    return [
        found
        for path, text in sorted(texts.items())
        if path.endswith(".yaml")
        for found in yaml.safe_load_all(text)
        if found
    ]


def test_upgrades_begin_at_the_last_release() -> None:
    """Whoever releases keeps what is released, and moves `BEFORE` on."""
    released = re.findall(r"^## \[(\d.*?)\]", CHANGELOG.read_text(), re.MULTILINE)

    assert BEFORE.name == released[0]


def test_every_field_of_the_version_before_is_in_its_services() -> None:
    """What is not stored in the fixture is not tried."""
    stored = [*yaml.safe_load_all(SERVICES.read_text())]
    before = yaml.safe_load(BEFORE_DEFINITION.read_text())
    (version,) = before["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]

    used = {path for service in stored for path in _used(service["spec"])}
    assert set(_leaves(schema)) - used == set()


def _leaves(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    inner = schema.get("items", schema)
    if "properties" not in inner:
        yield path
    for name, field in inner.get("properties", {}).items():
        yield from _leaves(field, f"{path}.{name}")


def _used(value: Any, path: str = "") -> Iterator[str]:
    yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _used(inner, f"{path}.{name}")
    if isinstance(value, list):
        for inner in value:
            yield from _used(inner, path)


def test_no_field_is_lost_and_none_becomes_required() -> None:
    """Spec and status alike: what was stored is neither dropped nor refused."""
    before = yaml.safe_load(BEFORE_DEFINITION.read_text())
    (old,) = before["spec"]["versions"]
    (new,) = [v for v in definition()["spec"]["versions"] if v["name"] == old["name"]]

    lost = [*_narrowed(old["schema"]["openAPIV3Schema"], new["schema"]["openAPIV3Schema"], "")]
    assert unknown_to(definition(), before) == []
    assert lost == []


def _narrowed(old: dict[str, Any], new: dict[str, Any], path: str) -> Iterator[str]:
    """Name what the new schema allows less of."""
    if set(new.get("required", ())) - set(old.get("required", ())):
        yield f"{path}: required"
    if set(old.get("enum", ())) - set(new.get("enum", ())):
        yield f"{path}: enum"
    if old.get("type") != new.get("type"):
        yield f"{path}: type"
    if new.get("maxLength", 0) < old.get("maxLength", 0):
        yield f"{path}: maxLength"
    if new.get("maximum", 0) < old.get("maximum", 0):
        yield f"{path}: maximum"
    if new.get("minimum", 0) > old.get("minimum", 0):
        yield f"{path}: minimum"
    for name, inner in old.get("properties", {}).items():
        yield from _narrowed(inner, new["properties"][name], f"{path}.{name}")
    if "items" in old:
        yield from _narrowed(old["items"], new["items"], f"{path}[]")


def test_an_older_definition_is_never_put_over_a_newer_one() -> None:
    """An older chart's Job names what it does not know, and leaves it."""
    newer = deepcopy(definition())
    spec = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["model"]["properties"]["novelty"] = {"type": "string"}

    assert unknown_to(definition(), newer) == ["v1alpha1.spec.model.novelty"]
    assert unknown_to(newer, definition()) == []


def test_what_others_wrote_on_the_definition_stays() -> None:
    """Its uid, its conditions, the notes of other tools."""
    installed = deepcopy(definition())
    installed["metadata"] |= {"uid": "1", "annotations": {"note": "theirs"}}
    installed["spec"]["versions"] = []

    after = upgraded(installed, definition())
    assert after["spec"] == definition()["spec"]
    assert after["metadata"]["uid"] == "1"
    assert after["metadata"]["annotations"] == {
        "note": "theirs",
        **definition()["metadata"]["annotations"],
    }
