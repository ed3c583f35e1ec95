"""The operator's tokens, all derived from one key, so that no service's Secret need be read.

Whoever may read Secrets cluster-wide owns the cluster. The key is one Secret in the operator's own
namespace; the runtime token of a service follows from it and from the service's name.
"""

import base64
import contextlib
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final

from paceline_api.labels import Manifest
from paceline_operator.errors import ConflictError, TokenKeyError
from paceline_operator.kubernetes_api import KubernetesApi

_ENTRY: Final = "key"
_MIN_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Derives tokens by HMAC-SHA256; which purpose a token is for is part of what is hashed."""

    key: bytes = field(repr=False)

    def runtime_token(self, service: str) -> str:
        """Derive the token of the runtime API of one service, `namespace/name`.

        Not of its uid: children that are adopted, after a restore from a backup for one, go on
        with the Secret that they have.
        """
        return self._derive(f"runtime/{service}")

    def decisions_token(self) -> str:
        """Derive the token of the operator's own `/decisions`."""
        return self._derive("decisions")

    def reports_token(self) -> str:
        """Derive the token with which replicas tell each other what they concluded."""
        return self._derive("reports")

    def _derive(self, purpose: str) -> str:
        digest = hmac.digest(self.key, f"paceline/v1/{purpose}".encode(), hashlib.sha256)
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


async def open_token_key(cluster: KubernetesApi, namespace: str, prefix: str) -> TokenKey:
    """Read the key's Secret, and make it where there is none; show the token that people need.

    Replicas that start together agree: the second to create is refused, and reads.
    Raises TokenKeyError where the Secret holds no key, ApiError where it cannot be read.
    """
    name = f"{prefix}-token-key"
    found = await cluster.get("Secret", namespace, name)
    if found is None:
        fresh = base64.b64encode(secrets.token_bytes(_MIN_BYTES)).decode()
        try:
            found = await cluster.create(_secret(namespace, name, {_ENTRY: fresh}))
        except ConflictError:
            found = await cluster.get("Secret", namespace, name)
    key = TokenKey(_key_in(found, f"{namespace}/{name}"))
    shown = base64.b64encode(key.decisions_token().encode()).decode()
    with contextlib.suppress(ConflictError):  # made before, from the same key
        await cluster.create(_secret(namespace, f"{prefix}-decisions-token", {"token": shown}))
    return key


def _key_in(secret: Manifest | None, name: str) -> bytes:
    encoded = ((secret or {}).get("data") or {}).get(_ENTRY) or ""
    try:
        key = base64.b64decode(encoded, validate=True)
    except ValueError:
        key = b""
    if len(key) < _MIN_BYTES:
        wanted = f"at least {_MIN_BYTES} bytes under `{_ENTRY}`"
        raise TokenKeyError(f"Secret {name} must hold {wanted}, got {len(key)}")
    return key


def _secret(namespace: str, name: str, data: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        # Not labelled as a service's child: `kubectl delete` of all tokens must spare the key.
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "paceline"},
        },
        "type": "Opaque",
        "data": data,
    }
