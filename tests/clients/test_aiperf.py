"""`aiperf profile`, as a command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from clients.conftest import Served

pytest.importorskip("aiperf")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_a_profile_runs_to_its_end(served: Served, tmp_path: Path) -> None:
    """Three streamed chats, measured."""
    command = [
        str(Path(sys.executable).with_name("aiperf")),
        *("profile", "--model", served.model, "--url", served.url),
        *("--endpoint-type", "chat", "--streaming", "--ui", "none"),
        *("--request-count", "3", "--concurrency", "1", "--isl", "16", "--osl", "8"),
        *("--tokenizer", str(served.run_dir), "--artifact-dir", str(tmp_path)),
    ]

    # Told to be offline, it takes the tokenizer's folder for a name on the hub.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(command, check=True, timeout=300, env=environment)

    (export,) = tmp_path.rglob("profile_export_aiperf.json")
    assert json.loads(export.read_text())["request_count"]["avg"] == 3
