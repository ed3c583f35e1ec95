"""guidellm measures the same service within the intervals of `paceline bench run`.

Ours runs before and after theirs, with lengths as theirs: what they say has to lie between the
lowest and the highest end of our two intervals, so that a machine that warms up is no difference.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import ROOT, Served

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
NUM_REQUESTS = 60
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Theirs:
    """What another tool measured, milliseconds."""

    ttft_p50: float
    itl_mean: float


def ours(served: Served, folder: Path, endpoint: str) -> dict[str, Any]:
    """One run of the command, a request at a time."""
    python = os.environ.get("PACELINE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    command = [
        *(python, "-m", "paceline_cli", "bench", "run", "--url", served.url),
        *("--endpoint", endpoint, "--concurrency", "1", "--requests", str(NUM_REQUESTS)),
        *("--prompt-tokens", str(PROMPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
        *("--out", str(folder)),
    ]
    subprocess.run(command, check=True, timeout=300)
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())["measures"]
    return found


def within(ours: list[dict[str, Any]], theirs: Theirs) -> None:
    """Compare medians of first tokens, and means of the gaps."""
    for name, value, ends in (
        ("TTFT p50", theirs.ttft_p50, [run["ttft"]["quantiles"][0]["ms"] for run in ours]),
        ("ITL mean", theirs.itl_mean, [run["itl"]["mean_ms"] for run in ours]),
    ):
        low, high = min(each["low"] for each in ends), max(each["high"] for each in ends)
        assert low <= value <= high, f"{name}: {value:.1f} is not in {low:.1f} to {high:.1f}"


def test_guidellm_agrees(served: Served, tmp_path: Path) -> None:
    """One request at a time, as ours."""
    pytest.importorskip("guidellm")
    report = tmp_path / "report.json"
    command = [
        str(BIN / "guidellm"),
        *("run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={served.url},request_format=/v1/completions"),
        *("--profile", "kind=synchronous"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        "--data",
        f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        *("--tokenizer", f"kind=huggingface_auto,model={served.run_dir}"),
        *("--output", f"kind=json,path={report}"),
    ]

    first = ours(served, tmp_path / "before", "completions")
    subprocess.run(command, check=True, timeout=300)
    last = ours(served, tmp_path / "after", "completions")

    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    found = benchmark["metrics"]
    within(
        [first, last],
        Theirs(
            ttft_p50=found["time_to_first_token_ms"]["successful"]["percentiles"]["p50"],
            itl_mean=found["inter_token_latency_ms"]["successful"]["mean"],
        ),
    )
