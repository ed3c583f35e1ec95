"""What a spec says of devices, queues and topology is what a pod says of them."""

from typing import Any

import pytest

from paceline_api.labels import Manifest
from paceline_operator.render.pod import pod_template
from paceline_testing.examples import services_of
from paceline_testing.services import a_service

_FOLDER = "placement"


def _template(**spec: Any) -> Manifest:
    return pod_template(
        a_service(**spec), engine_image="engine:1", sidecar_image="sidecar:1", template_hash="h"
    )


def _example(name: str) -> dict[str, Manifest]:
    """The pod template of each service of an example."""
    found = {}
    for manifest in services_of(f"{_FOLDER}/{name}.yaml"):
        found[manifest["metadata"]["name"]] = _template(**manifest["spec"])
    return found


def _engine(template: Manifest) -> Manifest:
    (engine,) = template["spec"]["containers"]
    return dict(engine)


def test_a_pod_without_them_has_none_of_their_fields() -> None:
    """A new version of the operator restarts nothing."""
    template = _template()

    assert template["spec"].keys().isdisjoint({"resourceClaims", "schedulerName"})
    assert "claims" not in _engine(template)["resources"]
    assert len(template["spec"]["topologySpreadConstraints"]) == 1
    names = {variable["name"] for variable in _engine(template)["env"]}
    assert "PACELINE_ENGINE_KV_CACHE_BYTES" not in names


@pytest.mark.parametrize(
    ("example", "service", "resource"),
    [
        ("mig", "sliced", "nvidia.com/mig-1g.10gb"),
        ("time-slicing", "shared", "nvidia.com/gpu.shared"),
        ("priority", "urgent", "nvidia.com/gpu"),
        ("kueue", "queued", "nvidia.com/gpu"),
    ],
)
def test_a_part_of_a_gpu_is_an_extended_resource(example: str, service: str, resource: str) -> None:
    """A device plugin names it, and the engine's container asks for it by request and limit."""
    resources = _engine(_example(example)[service])["resources"]

    assert resources["requests"][resource] == resources["limits"][resource] == "1"
    assert len([name for name in resources["limits"] if name.startswith("nvidia.com/")]) == 1


def test_who_shares_a_gpu_takes_a_part_that_does_not_depend_on_the_others() -> None:
    """The fraction counts what others have taken: the second pod would find nothing left."""
    env = {
        entry["name"]: entry.get("value")
        for entry in _engine(_example("time-slicing")["shared"])["env"]
    }

    assert env["PACELINE_ENGINE_KV_CACHE_BYTES"] == str(8 << 30)


def test_a_claim_brings_the_gpu_instead_of_a_device_plugin() -> None:
    """Each pod gets a claim of the template, and the engine alone sees its devices."""
    template = _example("claims")["claimed"]
    resources, (sidecar,) = _engine(template)["resources"], template["spec"]["initContainers"]

    assert template["spec"]["resourceClaims"] == [
        {"name": "gpu", "resourceClaimTemplateName": "one-large-gpu"}
    ]
    assert resources["claims"] == [{"name": "gpu"}]
    assert resources["limits"].keys() == {"memory"}
    assert "claims" not in sidecar["resources"]
    env = {entry["name"]: entry.get("value") for entry in _engine(template)["env"]}
    assert env["PACELINE_ENGINE_DEVICE"] == "cuda"


def test_services_that_share_a_claim_name_the_same_one() -> None:
    """It is not a template: there is one GPU, and both pods have it."""
    shared = [{"name": "gpu", "resourceClaimName": "team-gpu"}]

    templates = _example("shared-claim")

    assert {name: each["spec"]["resourceClaims"] for name, each in templates.items()} == {
        "writes": shared,
        "ranks": shared,
    }


def test_other_devices_are_claimed_beside_a_gpu_that_is_not() -> None:
    """A network card by claim changes nothing of how the GPU is asked for."""
    template = _template(
        resources={"claims": [{"name": "nic", "request": "fast"}]},
        resourceClaims=[{"name": "nic", "resourceClaimTemplateName": "rdma"}],
    )

    assert _engine(template)["resources"] == {
        "requests": {"nvidia.com/gpu": "1"},
        "limits": {"nvidia.com/gpu": "1"},
        "claims": [{"name": "nic", "request": "fast"}],
    }


def test_classes_and_the_scheduler_are_the_pods() -> None:
    spec = _example("priority")["urgent"]["spec"]

    assert spec["priorityClassName"] == "serving"
    assert spec["runtimeClassName"] == "nvidia"
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert _template(scheduling={"schedulerName": "other"})["spec"]["schedulerName"] == "other"


def test_pods_spread_over_zones_beside_nodes() -> None:
    """The selector is the service's own: no other pod counts."""
    constraints = _example("zones")["zonal"]["spec"]["topologySpreadConstraints"]

    own = {"matchLabels": {"serving.paceline.dev/service": "quick"}}
    assert [each.pop("labelSelector") for each in constraints] == [own, own]
    assert constraints == [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
        },
        {
            "maxSkew": 1,
            "topologyKey": "topology.kubernetes.io/zone",
            "whenUnsatisfiable": "DoNotSchedule",
            "matchLabelKeys": ["pod-template-hash"],
        },
    ]


def test_a_queue_is_a_label_of_the_pods() -> None:
    """Kueue reads it from the pods themselves; the operator's own labels stay."""
    labels = _example("kueue")["queued"]["metadata"]["labels"]

    assert labels["kueue.x-k8s.io/queue-name"] == "team-a"
    assert labels["kueue.x-k8s.io/priority-class"] == "interactive"
    assert labels["serving.paceline.dev/service"] == "quick"
