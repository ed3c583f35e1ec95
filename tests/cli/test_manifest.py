"""A manifest file is refused with a sentence, and a new version is told hot from cold."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_api.inference_service import Spec
from paceline_cli.manifest import ManifestError, compare, load, with_hot_fields

QUICKSTART = Path(__file__).parents[2] / "examples/quickstart.yaml"


def write(folder: Path, *documents: object) -> Path:
    path = folder / "service.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    return path


def quickstart(**spec: Any) -> dict[str, Any]:
    manifest: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    manifest["spec"] |= spec
    return manifest


def spec_of(folder: Path, **spec: Any) -> Spec:
    return load(write(folder, quickstart(**spec))).spec


def test_the_quickstart_is_valid() -> None:
    """The file that a stranger tries first."""
    service = load(QUICKSTART)

    assert service.metadata.name == "quickstart"
    assert service.spec.resources.gpu.count == 0


def test_other_objects_beside_the_service_are_passed_over(tmp_path: Path) -> None:
    """A file may hold the namespace too, as for kubectl."""
    path = write(tmp_path, {"apiVersion": "v1", "kind": "Namespace"}, quickstart())

    assert load(path).metadata.name == "quickstart"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"sla": {"itl": {"p99": "fast"}}}, ["spec.sla.itl.p99", "fast"]),
        ({"sla": {"objective": "0.99"}}, ["spec.sla", "ttft, tpot, itl and e2e"]),
        ({"tuning": {"tokenBudget": {"initial": 4096}}}, ["tokenBudget", "capacity"]),
        ({"modle": {}}, ["spec.modle"]),
        ({"model": {"uri": "pvc://claim/model"}}, ["spec.model.uri", "needs a cluster"]),
        (
            {
                "engine": {"lora": {"maxAdapters": 1, "claimName": "team"}},
                "adapters": [{"name": "sql", "uri": "pvc://team/sql"}],
            },
            ["spec.adapters[0].uri", "needs a cluster", "file:// or hf://"],
        ),
    ],
    ids=["pattern", "rule", "cross-field rule", "unknown field", "cluster only", "adapter"],
)
def test_a_bad_field_is_named(tmp_path: Path, spec: dict[str, Any], words: list[str]) -> None:
    """The same sentence that the API server would give, with the file before it."""
    path = write(tmp_path, quickstart(**spec))

    with pytest.raises(ManifestError) as refusal:
        load(path)

    for word in [str(path), *words]:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [", "not YAML"),
        ("", "exactly one InferenceService, holds 0"),
        ("- a list", "exactly one InferenceService, holds 0"),
        ("kind: Pod", "apiVersion, kind"),
    ],
    ids=["broken", "empty", "list", "another kind"],
)
def test_a_file_that_holds_no_service_is_refused(tmp_path: Path, text: str, words: str) -> None:
    """Whatever the file holds, the answer is a sentence."""
    path = tmp_path / "service.yaml"
    path.write_text(text)

    with pytest.raises(ManifestError, match=words):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The most common mistake of all."""
    with pytest.raises(ManifestError, match=r"nowhere.yaml: no such file"):
        load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize(
    ("spec", "is_hot", "cold_fields"),
    [
        ({}, False, ()),
        ({"sla": {"itl": {"p99": "350ms"}}}, True, ()),
        ({"tuning": {"mode": "Fixed"}}, True, ()),
        ({"paused": True}, True, ()),
        (
            {"engine": {"capacity": {"maxBatchSize": 64, "maxTokenBudget": 2048}}},
            False,
            ("engine",),
        ),
        (
            {"model": {"uri": "file:///elsewhere"}, "admission": {"maxQueuedRequests": 8}},
            True,
            ("model",),
        ),
        ({"replicas": 3}, False, ()),
        ({"replicas": 3, "model": {"uri": "file:///elsewhere"}}, False, ("model",)),
        ({"rollout": {"maxSurge": 2}, "model": {"uri": "file:///elsewhere"}}, False, ("model",)),
        ({"rollout": {"drainSeconds": 5}}, False, ("rollout",)),
    ],
    ids=[
        "nothing",
        "target",
        "mode",
        "pause",
        "capacity",
        "model and admission",
        "replicas",
        "replicas and model",
        "surge and model",
        "drain",
    ],
)
def test_changes_are_told_hot_from_cold(
    tmp_path: Path, spec: dict[str, Any], is_hot: bool, cold_fields: tuple[str, ...]
) -> None:
    """By the hashes that decide it in a cluster: what rolls no pod needs no restart here."""
    # Bounds would be filled in from the capacity, so a change of it may change what is hot too.
    bounds = {"batchSize": {"max": 32}, "tokenBudget": {"max": 2048}}
    served = spec_of(tmp_path, tuning=bounds)
    wanted = spec_of(tmp_path, **({"tuning": bounds} | spec))

    difference = compare(served, wanted)

    assert difference.is_hot is is_hot
    assert difference.cold_fields == cold_fields


def test_an_adapter_comes_without_a_restart(tmp_path: Path) -> None:
    """Room for it was taken at start."""
    engine = {"lora": {"maxAdapters": 2}}
    served = spec_of(tmp_path, engine=engine)
    wanted = spec_of(tmp_path, engine=engine, adapters=[{"name": "sql", "uri": "file:///a"}])

    difference = compare(served, wanted)

    assert difference.is_hot
    assert difference.cold_fields == ()
    assert with_hot_fields(served, wanted).adapters == wanted.adapters


def test_hot_fields_are_taken_and_cold_ones_kept(tmp_path: Path) -> None:
    """What runs is described as it runs."""
    served = spec_of(tmp_path)
    wanted = spec_of(tmp_path, sla={"itl": {"p99": "350ms"}}, model={"uri": "file:///elsewhere"})

    spec = with_hot_fields(served, wanted)

    assert spec.sla == wanted.sla
    assert spec.model == served.model
