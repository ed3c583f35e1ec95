"""A bad manifest is refused offline with the sentence that the API server would use."""

import pytest

from paceline_api.labels import Manifest
from paceline_api.validate import InvalidManifestError, validate
from paceline_operator.write_plan import unsupported
from paceline_testing.examples import EXAMPLES, services_of
from paceline_testing.invalid_manifests import CASES, Case, failing, passing
from paceline_testing.services import a_manifest

SERVICES = [
    pytest.param(service, id=name)
    for path in sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("gateway/*.yaml")])
    if "\nkind: InferenceService\n" in path.read_text()
    for name in [path.relative_to(EXAMPLES).as_posix()]
    for service in services_of(name)
]

each_rule = pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)


@each_rule
def test_a_good_manifest_is_taken(case: Case) -> None:
    """Every rule has an object on its good side, as close to the bad side as it gets."""
    assert validate(passing(case)).spec.model.uri


@each_rule
def test_a_bad_manifest_names_its_field(case: Case) -> None:
    """A person must find the line to change."""
    with pytest.raises(InvalidManifestError) as refused:
        validate(failing(case))

    assert case.field in str(refused.value)
    assert case.sentence in str(refused.value)
    assert 'InferenceService.serving.paceline.dev "quick" is invalid' in str(refused.value)


@pytest.mark.parametrize("name", ["9lives", "with.dot", "x" * 51, "Upper", "end-"])
def test_a_name_must_do_for_a_service_and_a_label(name: str) -> None:
    """The children carry the name: a Service's is a DNS label, a label's value is short."""
    with pytest.raises(InvalidManifestError, match=r"metadata\.name must be"):
        validate(a_manifest(name))


@pytest.mark.parametrize("service", SERVICES)
def test_an_example_is_taken_and_supported(service: Manifest) -> None:
    """They are copied: one that is refused would be the first thing a stranger sees."""
    assert unsupported(validate(service).spec) == ""


def test_another_kind_is_refused() -> None:
    """A Deployment passed by mistake gets told what is wanted."""
    with pytest.raises(InvalidManifestError, match=r"must be serving\.paceline\.dev/v1alpha1"):
        validate({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}})


def test_a_manifest_without_a_name_is_refused() -> None:
    """Local mode has no generateName."""
    with pytest.raises(InvalidManifestError, match=r"metadata\.name: Required value"):
        validate(a_manifest() | {"metadata": {}})


def test_validation_leaves_the_manifest_alone() -> None:
    """Defaults are filled into a copy."""
    manifest = a_manifest()

    validate(manifest)

    assert manifest == a_manifest()


def test_defaults_reach_inner_fields() -> None:
    """What the API server would fill in is there."""
    spec = validate(a_manifest(engine={"capacity": {"maxBatchSize": 32}})).spec

    assert spec.engine.capacity.max_batch_size == 32
    assert spec.engine.capacity.max_token_budget == 8192
    assert spec.admission.request_timeout == "60s"
