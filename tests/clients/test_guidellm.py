"""`guidellm run`, as a command: it asks `/health` first, then measures."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clients.conftest import Served

pytest.importorskip("guidellm")
pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]


def test_a_benchmark_runs_to_its_end(served: Served, tmp_path: Path) -> None:
    """No request fails, and each has its tokens."""
    report = tmp_path / "report.json"
    command = [
        str(Path(sys.executable).with_name("guidellm")),
        *("run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={served.url}"),
        *("--profile", "kind=synchronous"),
        *("--constraint", "kind=max_requests,count=3"),
        *("--data", "kind=synthetic_text,prompt_tokens=16,output_tokens=8"),
        *("--tokenizer", f"kind=huggingface_auto,model={served.run_dir}"),
        *("--output", f"kind=json,path={report}"),
    ]

    subprocess.run(command, check=True, timeout=300)

    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (3, 0)
