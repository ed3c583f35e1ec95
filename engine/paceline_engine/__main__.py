"""`python -m paceline_engine`: read the settings, then serve until SIGTERM."""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path

from paceline_engine.errors import BadSettings
from paceline_engine.pacing import make_pacer
from paceline_engine.process import LoadedModel, explain, serve
from paceline_engine.settings import Settings, read_settings


def main() -> int:
    """Run the engine; the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        settings = read_settings()
    except BadSettings as error:
        explain(error, _termination_log())
        return 1
    return serve(settings, _load_model, make_pacer)


def _load_model(settings: Settings, progress: Callable[[str, float], None]) -> LoadedModel:
    # Not imported at the top: torch takes seconds, and the socket answers meanwhile.
    from paceline_engine.model.load import load_model  # noqa: PLC0415 - as above

    return load_model(settings, progress)


def _termination_log() -> Path:
    """Where the settings would have said, had they been readable."""
    named = os.environ.get("PACELINE_ENGINE_TERMINATION_LOG")
    return Path(named or Settings.model_fields["termination_log"].default)


if __name__ == "__main__":
    sys.exit(main())
