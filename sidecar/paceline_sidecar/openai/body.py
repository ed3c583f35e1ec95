"""What every object in a request body has in common."""

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class BodyPart(BaseModel):
    """A body or an object in one: nothing is converted, and a null field is an absent one."""

    model_config = ConfigDict(strict=True, frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, given: Any) -> Any:
        # Typed clients send null for whatever nobody has set.
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}
