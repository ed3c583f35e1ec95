"""`spec.adapters`: the LoRA adapters that every pod is to have."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from paceline_api.model_spec import Revision
from paceline_api.part import Part, Rule

MOUNT: Final = "/adapters"
"""Where the engine sees the claim of `engine.lora.claimName`."""
MAX_ADAPTERS: Final = 64


class AdapterSpec(Part):
    """One LoRA adapter, by the name that requests give as their `model`."""

    cel_rules: ClassVar = (
        Rule(
            "!self.uri.startsWith('hf://') || has(self.revision)",
            "an hf:// adapter needs a revision: a branch can move, a commit cannot",
            ".revision",
            is_required=True,
        ),
    )

    name: Annotated[str, Field(pattern=r"^[-._/a-zA-Z0-9]+$", max_length=128)]
    """`model` in requests."""
    uri: Annotated[str, Field(pattern=r"^(hf|pvc|file)://.+$", max_length=512)]
    """A folder as PEFT saves it: `pvc://CLAIM/PATH` on the claim of `engine.lora.claimName`,
    `file:///PATH` in the engine's image, or `hf://ORG/NAME`, which the engine downloads."""
    revision: Revision | None = None
    """The commit of an hf:// adapter."""

    @property
    def path(self) -> str:
        """Where the engine finds it: a path in its container, or `hf://ORG/NAME@COMMIT`."""
        scheme, _, rest = self.uri.partition("://")
        if scheme == "hf":
            return f"{self.uri}@{self.revision}"
        if scheme == "pvc":
            return f"{MOUNT}/{rest.partition('/')[2]}"
        return rest
