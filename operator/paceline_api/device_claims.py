"""Device claims, as in a pod's spec (Kubernetes' dynamic resource allocation)."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from paceline_api.part import Part, Rule
from paceline_api.units import Name

MAX_CLAIMS: Final = 16

ClaimLabel = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class PodClaim(Part):
    """One claim of devices, by the name that containers know it by."""

    cel_rules: ClassVar = (
        Rule(
            "has(self.resourceClaimName) != has(self.resourceClaimTemplateName)",
            "name one of resourceClaimName and resourceClaimTemplateName",
        ),
    )

    name: ClaimLabel
    resource_claim_name: Name | None = None
    """A ResourceClaim that all pods of the service share, and may share with others."""
    resource_claim_template_name: Name | None = None
    """A ResourceClaimTemplate, of which each pod gets a claim of its own."""


class EngineClaim(Part):
    """A claim whose devices the engine sees."""

    name: ClaimLabel
    """One of `resourceClaims`."""
    request: ClaimLabel | None = None
    """One of the claim's requests; all of them when absent."""
