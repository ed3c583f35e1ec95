"""Why an engine gives up, in the words of its termination log (docs/processes.md)."""

from typing import Final

# A person must act: the same start would fail the same way.
LASTING: Final = frozenset(
    {
        "ModelNotFound",
        "RevisionNotFound",
        "CorruptModel",
        "UnsupportedModel",
        "UnsupportedDevice",
        "DoesNotFit",
        "CacheFull",
        "BadSettings",
    }
)
REASONS: Final = LASTING | {"DownloadFailed"}
"""Reasons that concern the model. An engine that crashed or hung is started again and may serve."""
