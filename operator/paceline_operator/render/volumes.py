"""The volumes of a pod, and which of them the engine and the sidecar mount."""

from dataclasses import dataclass
from typing import Any, Final

from paceline_api.adapter_spec import MOUNT as ADAPTERS
from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest, config_map_name, secret_name
from paceline_api.pod.environment import (
    API_KEYS,
    BATCHES,
    CACHE,
    DRAFT_MODEL,
    MODEL,
    RUN,
    RUNTIME_CONFIG,
    RUNTIME_TOKEN,
    TLS,
)
from paceline_operator.render.overrides import extra_volumes

# The folder survives the pod and is shared by all services of a node.
_HOST_CACHE: Final = "/var/cache/paceline"
# NCCL passes data between the GPUs of a container through it; its guide starts docker with 1g
# (docs.nvidia.com/deeplearning/nccl/user-guide, Troubleshooting, Shared memory).
_SHARED_BY_RANKS: Final = "1Gi"


@dataclass(frozen=True, slots=True)
class Volume:
    """One volume and its mounts; None where a container does not see it."""

    source: Manifest
    engine: Manifest | None = None
    sidecar: Manifest | None = None


def volumes(service: InferenceService) -> dict[str, Volume]:
    """List the volumes that this spec needs, by name."""
    name = service.metadata.name
    found = {
        "run": Volume(
            {"emptyDir": {"medium": "Memory", "sizeLimit": "256Mi"}}, _mount(RUN), _mount(RUN)
        ),
        "tmp": Volume({"emptyDir": {}}, _mount("/tmp"), _mount("/tmp")),  # noqa: S108 - its own volume
        "cache": Volume(_cache(service), _mount(CACHE)),
        "runtime-config": Volume(
            {"configMap": {"name": config_map_name(name)}}, None, _read_only(RUNTIME_CONFIG)
        ),
        "runtime-token": Volume(
            {"secret": {"secretName": secret_name(name), "defaultMode": 0o440}},
            None,
            _read_only(RUNTIME_TOKEN),
        ),
    }
    if source := _model(service.spec.model.uri):
        found["model"] = Volume(source, _read_only(MODEL))
    if source := _model(service.spec.engine.speculative.draft_model_uri or ""):
        found["draft-model"] = Volume(source, _read_only(DRAFT_MODEL))
    if claim := service.spec.engine.lora.claim_name:
        source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        found["adapters"] = Volume(source, _read_only(ADAPTERS))
    if size := _shared_memory(service):
        found["dshm"] = Volume(
            {"emptyDir": {"medium": "Memory", "sizeLimit": size}},
            _mount("/dev/shm"),  # noqa: S108 - its purpose
        )
    if batches := service.spec.api.batches:
        source = {"persistentVolumeClaim": {"claimName": batches.claim_name}}
        found["batches"] = Volume(source, sidecar=_mount(BATCHES))
    for volume, (source, path) in extra_volumes(service).items():
        found[volume] = Volume(source, _read_only(path))
    return found | _api_secrets(service)


def _mount(path: str) -> Manifest:
    return {"mountPath": path}


def _read_only(path: str) -> Manifest:
    return {"mountPath": path, "readOnly": True}


def _api_secrets(service: InferenceService) -> dict[str, Volume]:
    found: dict[str, Volume] = {}
    api = service.spec.api
    if api.auth and (keys := api.auth.api_keys_secret_ref):
        source: dict[str, Any] = {
            "secretName": keys.name,
            "defaultMode": 0o440,
            "items": [{"key": keys.key, "path": "keys"}],
        }
        found["api-keys"] = Volume({"secret": source}, None, _read_only(API_KEYS))
    if api.tls:
        source = {"secretName": api.tls.secret_ref.name, "defaultMode": 0o440}
        found["tls"] = Volume({"secret": source}, None, _read_only(TLS))
    return found


def _model(uri: str) -> Manifest | None:
    scheme, _, rest = uri.partition("://")
    if scheme == "oci":
        return {"image": {"reference": rest, "pullPolicy": "IfNotPresent"}}
    if scheme == "pvc":
        return {"persistentVolumeClaim": {"claimName": rest.split("/", 1)[0], "readOnly": True}}
    return None


def _shared_memory(service: InferenceService) -> str:
    """Size of /dev/shm; empty leaves the container's own 64 MiB."""
    asked = service.spec.resources.shared_memory
    if asked is not None:
        return str(asked)
    shares = service.spec.resources.gpu.count and service.spec.engine.tensor_parallel_size > 1
    return _SHARED_BY_RANKS if shares else ""


def _cache(service: InferenceService) -> Manifest:
    cache = service.spec.model.cache
    if cache.type == "PVC":
        return {"persistentVolumeClaim": {"claimName": cache.claim_name}}
    if cache.type == "HostPath":
        return {"hostPath": {"path": _HOST_CACHE, "type": "DirectoryOrCreate"}}
    return {"emptyDir": {} if cache.size_limit is None else {"sizeLimit": str(cache.size_limit)}}
