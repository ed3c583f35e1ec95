"""The reasons that the operator reads from an engine's last words are those that engines give."""

import pytest

from paceline_api.pod.exit_reasons import REASONS
from paceline_engine import errors


@pytest.mark.parametrize("reason", sorted(REASONS))
def test_an_engine_gives_this_reason(reason: str) -> None:
    """A condition that no engine can cause would be documented for nothing."""
    assert issubclass(getattr(errors, reason), errors.EngineError)
