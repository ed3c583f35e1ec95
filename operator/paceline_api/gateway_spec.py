"""The parts of spec that gateways are told by: an InferencePool and its endpoint picker."""

from typing import Annotated, Literal

from pydantic import Field

from paceline_api.part import Part
from paceline_api.units import Name


class PickerPort(Part):
    """A port of the picker's Service."""

    number: Annotated[int, Field(ge=1, le=65_535)]
    """The port of the picker's Service, not of its pods; 9002 as a rule."""


class EndpointPickerRef(Part):
    """The Service of an endpoint picker, as in the spec of an InferencePool."""

    name: Name
    """The picker's Service, in the same namespace."""
    port: PickerPort
    failure_mode: Literal["FailClose", "FailOpen"] = "FailClose"
    """What the gateway does while the picker does not answer. FailClose: it refuses requests.
    FailOpen: it chooses pods by itself."""


class InferencePool(Part):
    """The service's pods as a pool that an endpoint picker chooses from."""

    endpoint_picker_ref: EndpointPickerRef
