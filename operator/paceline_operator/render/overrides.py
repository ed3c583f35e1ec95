"""What `spec.podOverrides` and `spec.imagePullSecrets` add to a pod, where they are there."""

from paceline_api.inference_service import InferenceService
from paceline_api.labels import Manifest
from paceline_api.part import Part
from paceline_api.pod_overrides import MOUNTS, ExtraVolume


def with_variables(service: InferenceService, variables: list[Manifest]) -> list[Manifest]:
    """Add the engine's variables; one of a name that is there already replaces it."""
    added = [plain(variable) for variable in service.spec.pod_overrides.env or ()]
    names = {variable["name"] for variable in added}
    return [*(one for one in variables if one["name"] not in names), *added]


def tracing_variables(service: InferenceService) -> list[Manifest]:
    """List what the sidecar's environment says of traces."""
    return [plain(variable) for variable in service.spec.pod_overrides.sidecar_env or ()]


def with_groups(service: InferenceService, security: Manifest) -> Manifest:
    """Add the groups of the pod's user."""
    groups = service.spec.pod_overrides.supplemental_groups
    return security | {"supplementalGroups": groups} if groups else security


def pod_fields(service: InferenceService) -> Manifest:
    """Render the fields of the pod's spec that nothing else writes."""
    wanted = service.spec.pod_overrides
    fields: Manifest = {
        "imagePullSecrets": [plain(secret) for secret in service.spec.image_pull_secrets or ()],
        "hostAliases": [plain(alias) for alias in wanted.host_aliases or ()],
        "dnsConfig": plain(wanted.dns_config) if wanted.dns_config else {},
    }
    return {name: value for name, value in fields.items() if value}


def extra_volumes(service: InferenceService) -> dict[str, tuple[Manifest, str]]:
    """List the volumes that were added: source and path in the engine, by the volume's name."""
    return {
        volume_name(volume): (_source(volume), f"{MOUNTS}/{volume.name}")
        for volume in service.spec.pod_overrides.volumes or ()
    }


def volume_name(volume: ExtraVolume) -> str:
    """Name a volume that was added, as no volume of ours is named."""
    return f"mnt-{volume.name}"


def _source(volume: ExtraVolume) -> Manifest:
    if volume.claim_name:
        return {"persistentVolumeClaim": {"claimName": volume.claim_name, "readOnly": True}}
    if volume.config_map_name:
        return {"configMap": {"name": volume.config_map_name}}
    return {"secret": {"secretName": volume.secret_name, "defaultMode": 0o440}}


def plain(part: Part) -> Manifest:
    """Leave empty lists out, as the API server does: each apply would be a write."""
    found = part.model_dump(by_alias=True, exclude_none=True)
    return {name: value for name, value in found.items() if value != []}
