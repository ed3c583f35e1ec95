"""Pods that earlier versions rendered: a newer version renders the same, so none is restarted.

Each file in `pods/` holds a service as the API server gave it, the images that it had, and the pod
template and selector of its Deployment, as the version in the file's name rendered them. A file is
never written anew: one that differs means that an upgrade of the operator restarts pods.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_operator.render.children import Surroundings, children
from paceline_operator.write_plan import plan_writes

_PODS = Path(__file__).parent / "pods"
_FILES = sorted(_PODS.glob("*.json"))


class Earlier(NamedTuple):
    """What an earlier version was given, and what it made of it."""

    service: InferenceService
    around: Surroundings
    deployment: Manifest


def _read(file: Path) -> Earlier:
    kept: dict[str, Any] = json.loads(file.read_text())
    images = kept["images"]
    around = Surroundings(images["engine"], images["sidecar"], kept["operatorNamespace"])
    return Earlier(InferenceService.read(kept["service"]), around, kept["deployment"])


@pytest.mark.parametrize("file", _FILES, ids=lambda file: file.stem)
def test_a_newer_version_restarts_no_pod(file: Path) -> None:
    """A Deployment makes its pods anew when its template differs in anything at all."""
    earlier = _read(file)

    rendered = children(
        earlier.service, earlier.around, plan_writes(earlier.service.spec).template_hash
    )
    spec = next(one for one in rendered.wanted if one["kind"] == "Deployment")["spec"]

    assert spec["template"] == earlier.deployment["template"]
    assert spec["selector"] == earlier.deployment["selector"]  # immutable


def test_there_are_earlier_pods_to_compare_with() -> None:
    assert len(_FILES) >= 6
