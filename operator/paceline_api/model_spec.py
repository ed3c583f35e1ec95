"""`spec.model`: which weights are served."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from paceline_api.part import Part, Rule
from paceline_api.units import Name, Quantity

ModelUri = Annotated[str, Field(pattern=r"^(builtin|oci|hf|pvc|file|s3)://.+$", max_length=2048)]

Revision = Annotated[str, Field(pattern=r"^[-._/a-zA-Z0-9]+$", max_length=128)]


class SecretKey(Part):
    """One key of a Secret in the same namespace."""

    name: Name
    """The Secret."""
    key: Annotated[str, Field(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)] = "token"
    """Its key that holds the token."""


class CacheSpec(Part):
    """Where downloaded weights are kept."""

    cel_rules: ClassVar = (
        Rule(
            "(self.type == 'PVC') == has(self.claimName)",
            "claimName is needed by type PVC, and only by it",
            ".claimName",
        ),
        # At this level a stored object stays valid until its cache itself is changed.
        Rule(
            "self.type != 'HostPath'",
            "must be EmptyDir or PVC: the pod's user cannot write to a host's folder, pod security"
            " forbids one, and one service could change another's weights in it; the kubelet"
            " caches oci:// models for a whole node",
            ".type",
        ),
    )

    type: Literal["EmptyDir", "PVC", "HostPath"] = "EmptyDir"
    """EmptyDir goes with the pod, a PVC outlives it. HostPath is refused: objects from before keep
    it."""
    claim_name: Name | None = None
    """The PersistentVolumeClaim of type PVC."""
    size_limit: Quantity | None = None
    """Bound of an EmptyDir: a pod that exceeds it is evicted."""


class ModelSpec(Part):
    """Which weights are served, and under which name."""

    cel_rules: ClassVar = (
        Rule(
            "!self.uri.startsWith('hf://') || has(self.revision)",
            "an hf:// model needs a revision: a branch can move, a commit cannot",
            ".revision",
            is_required=True,
        ),
        Rule(
            "!self.uri.startsWith('s3://')",
            "s3:// is not served by this version: copy the model to a volume (pvc://), or into an"
            " image (oci://)",
            ".uri",
        ),
    )

    uri: ModelUri
    """`builtin://NAME`, `oci://IMAGE`, `hf://ORG/NAME`, `pvc://CLAIM/PATH`, `file:///PATH`."""
    revision: Revision | None = None
    """The commit of an hf:// model."""
    served_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """`model` in requests; the name of the InferenceService when absent."""
    credentials_secret_ref: SecretKey | None = None
    """Token for a private or gated model."""
    cache: CacheSpec = CacheSpec()
    """Where downloaded weights are kept."""
