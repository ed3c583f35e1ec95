"""The manifests of `examples/`, as a person applies them."""

from pathlib import Path
from typing import Final

import yaml

from paceline_api.inference_service import KIND
from paceline_api.labels import Manifest

EXAMPLES: Final = Path(__file__).parents[2] / "examples"


def documents_of(name: str) -> list[Manifest]:
    """Read every object of one example, in its order."""
    return [*yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8"))]


def services_of(name: str) -> list[Manifest]:
    """Read the services of one example."""
    return [each for each in documents_of(name) if each["kind"] == KIND]
