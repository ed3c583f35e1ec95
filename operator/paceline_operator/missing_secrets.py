"""Tell a missing Secret or key, as the kubelet words it, by the field of the spec that names it."""

import re
from dataclasses import dataclass
from typing import Final

from paceline_api.inference_service import InferenceService
from paceline_api.labels import secret_name
from paceline_operator.observe import HeldUp
from paceline_operator.render.overrides import volume_name

_VOLUME: Final = re.compile(r'volume "([^"]+)"')
# What the kubelet says of a Secret, and of a key, that is not there.
_ABSENT: Final = ("not found", "non-existent secret key", "couldn't find key")
_MAX_MESSAGE: Final = 1024


@dataclass(frozen=True, slots=True)
class _Use:
    """One Secret that the pods need."""

    where: str
    """The field of the spec that names it."""
    name: str
    key: str = ""
    """Empty where all of its keys are mounted."""

    def missing(self, pod: str, note: str) -> tuple[str, str]:
        what = f"Secret {self.name}" + (f" with the key {self.key}" if self.key else "")
        message = f"pod {pod} waits for {what} ({self.where}): {note}"
        return "SecretMissing", message[:_MAX_MESSAGE]


def volume_trouble(service: InferenceService, held_up: HeldUp) -> tuple[str, str]:
    """Conclude reason and message from what keeps a pod's volumes from being mounted."""
    found = _VOLUME.search(held_up.note)
    use = _volume_secrets(service).get(found[1]) if found else None
    if use is not None and any(word in held_up.note for word in _ABSENT):
        return use.missing(held_up.pod, held_up.note)
    return "VolumeUnavailable", f"pod {held_up.pod}: {held_up.note}"[:_MAX_MESSAGE]


def credentials_trouble(service: InferenceService, pod: str, note: str) -> tuple[str, str] | None:
    """Conclude the same of a container that lacks the model's credentials; None if it is not so."""
    ref = service.spec.model.credentials_secret_ref
    if ref is None or ref.name not in note or not any(word in note for word in _ABSENT):
        return None
    return _Use("spec.model.credentialsSecretRef", ref.name, ref.key).missing(pod, note)


def _volume_secrets(service: InferenceService) -> dict[str, _Use]:
    """Name the Secrets that are mounted, by their volume."""
    api = service.spec.api
    own = secret_name(service.metadata.name)
    found = {"runtime-token": _Use("the operator makes it again", own, "token")}
    if api.auth and (keys := api.auth.api_keys_secret_ref):
        found["api-keys"] = _Use("spec.api.auth.apiKeysSecretRef", keys.name, keys.key)
    if api.tls:
        found["tls"] = _Use("spec.api.tls.secretRef", api.tls.secret_ref.name, "tls.crt")
    for volume in service.spec.pod_overrides.volumes or ():
        if volume.secret_name:
            where = f"spec.podOverrides.volumes, {volume.name}"
            found[volume_name(volume)] = _Use(where, volume.secret_name)
    return found
