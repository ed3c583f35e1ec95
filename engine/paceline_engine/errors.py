"""Every way in which the engine refuses, as a small tree.

    EngineError             it cannot serve: it tells the sidecar and the kubelet, and exits with 1
    ├── BadSettings         a setting is out of its bounds, or contradicts another
    ├── ModelNotFound       nothing lies where the URI points
    ├── DownloadFailed      the hub did not answer, or refused
    ├── CacheFull           there is no room for what is downloaded
    ├── RevisionNotFound    the model is there, the revision is not
    ├── CorruptModel        a file is not what its name or its header says
    ├── UnsupportedModel    an architecture or a tensor type that the engine does not have
    ├── UnsupportedDevice   a GPU that is too old, or that its driver does not show
    ├── DoesNotFit          the weights or the KV cache are larger than the memory
    └── StepHung            the device does not answer any more
    RequestError            one request cannot go on; every other one does
    └── BadConstraint       the constraint on its output is too costly to enforce
    AdapterRefused          a LoRA adapter cannot be loaded or unloaded; serving goes on

The name of a class below `EngineError` is the reason that conditions and the termination log show.
"""

# As names are reasons, none of them ends in Error.
# ruff: noqa: N818


class EngineError(Exception):
    """The engine cannot serve, for a reason that a person can act on."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class _NamedError(EngineError):
    """An `EngineError` whose reason is the name of its class."""

    def __init__(self, message: str) -> None:
        super().__init__(type(self).__name__, message)


class BadSettings(_NamedError):
    """A setting is out of its bounds, or contradicts another."""


class ModelNotFound(_NamedError):
    """Nothing lies where the URI points."""


class DownloadFailed(_NamedError):
    """The hub did not answer, or refused."""


class CacheFull(_NamedError):
    """There is no room for what is downloaded."""


class RevisionNotFound(_NamedError):
    """The model is there, the revision is not."""


class CorruptModel(_NamedError):
    """A file is not what its name or its header says."""


class UnsupportedModel(_NamedError):
    """An architecture or a tensor type that the engine does not have."""


class UnsupportedDevice(_NamedError):
    """A GPU that is too old, or that its driver does not show."""


class DoesNotFit(_NamedError):
    """The weights or the KV cache are larger than the memory."""


class StepHung(_NamedError):
    """The device does not answer any more."""


class RequestError(Exception):
    """One request of a step cannot go on: it fails, and the step is run again without it."""

    def __init__(self, request_id: str, message: str) -> None:
        super().__init__(message)
        self.request_id = request_id
        self.message = message


class BadConstraint(RequestError):
    """A request's output constraint is too costly to enforce: the request's own fault."""


class AdapterRefused(Exception):
    """An adapter cannot be loaded or unloaded, in a sentence for whoever asked for it."""
