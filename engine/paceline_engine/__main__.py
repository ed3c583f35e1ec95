"""`python -m paceline_engine`: read the settings, then serve until SIGTERM."""

import argparse
import logging
import os
import sys
from pathlib import Path
from typing import get_args

from paceline_engine.errors import BadSettings
from paceline_engine.hardware.cores_reader import read_share
from paceline_engine.hardware.placing import core_use, place
from paceline_engine.pacing import make_pacer
from paceline_engine.process.collector import nothing_collected
from paceline_engine.process.process import (
    Progress,
    ServableModel,
    TakeTokenizer,
    explain,
    serve,
)
from paceline_engine.scheduling import Scheduling
from paceline_engine.settings import Settings, read_settings

_DRIVER_NODE = Path("/dev/nvidiactl")


def main() -> int:
    """Run the engine; the exit code."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    chosen = _options().parse_args()
    try:
        settings = read_settings(scheduling=chosen.scheduling)
    except BadSettings as error:
        explain(error, _termination_log())
        return 1
    return serve(settings, _load_model, make_pacer)


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m paceline_engine", description=__doc__)
    parser.add_argument(
        "--scheduling",
        choices=get_args(Scheduling),
        help="overrides PACELINE_ENGINE_SCHEDULING; continuous by default",
    )
    return parser


def _load_model(
    settings: Settings, progress: Progress, take_tokenizer: TakeTokenizer
) -> ServableModel:
    share = read_share(asked=settings.cpus)
    if _runs_on_cpu(settings):
        place(core_use(settings, share))
    # Imported late: torch takes seconds, while the socket must answer. And OpenMP, which torch
    # loads, pins its threads by the environment variables that `place` has set.
    with nothing_collected():
        from paceline_engine.loading.load import load_model  # noqa: PLC0415 - as above

    return load_model(settings, progress, take_tokenizer, share=share)


def _runs_on_cpu(settings: Settings) -> bool:
    """Return whether the CPU is certain; with `auto` and a GPU driver only torch can tell."""
    return settings.device == "cpu" or (settings.device == "auto" and not _DRIVER_NODE.exists())


def _termination_log() -> Path:
    """Return the path from its variable alone, because the settings as a whole are invalid."""
    named = os.environ.get("PACELINE_ENGINE_TERMINATION_LOG")
    return Path(named or Settings.model_fields["termination_log"].default)


if __name__ == "__main__":
    sys.exit(main())
