"""The hot configuration for pods that start while the operator is away."""

import json

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest, config_map_name, metadata
from paceline_api.pod.runtime_config import runtime_config
from paceline_api.tuning_spec import tuning_spec

FILE = "runtime.json"


def config_map(service: InferenceService) -> Manifest:
    """Render `<name>-runtime`."""
    config = runtime_config(tuning_spec(service.spec))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(service, config_map_name(service.metadata.name)),
        "data": {FILE: json.dumps(config, indent=2, sort_keys=True)},
    }
