"""guidellm and aiperf measure the same service within the intervals of `paceline bench run`.

Ours runs before and after theirs, with lengths as theirs: what they say has to lie between the
lowest and the highest end of our two intervals, so that a machine that warms up is no difference,
but for what a busier client costs the server beside it.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clients.conftest import CLIENT_CPUS, ROOT, Served, pinned

pytestmark = [pytest.mark.clients, pytest.mark.timeout(900)]
NUM_REQUESTS = 60
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 16
EXCERPT_TOKENS = 72
"""As our prompts are cut, by four characters a token: the model counts 64 of them."""
SLACK = 1.15
"""A busier client slows a server on the same machine: aiperf was 7 % above in one of two runs."""
BIN = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Theirs:
    """What another tool measured, milliseconds."""

    ttft_p50: float
    itl_mean: float


def ours(served: Served, folder: Path, *, seed: int) -> dict[str, Any]:
    """One run of the command, a request at a time; each seed has prompts that no cache knows."""
    python = os.environ.get("PACELINE_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
    command = [
        *(*pinned(CLIENT_CPUS), python, "-m", "paceline_cli", "bench", "run", "--url", served.url),
        *("--concurrency", "1", "--requests", str(NUM_REQUESTS), "--seed", str(seed)),
        *("--prompt-tokens", str(EXCERPT_TOKENS), "--output-tokens", str(OUTPUT_TOKENS)),
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
        is_near = low / SLACK <= value <= high * SLACK
        assert is_near, f"{name}: {value:.1f} is not near {low:.1f} to {high:.1f}"
        print(f"{name}: theirs {value:.1f}, ours {low:.1f} to {high:.1f}")  # noqa: T201 - for docs


def test_aiperf_agrees(served: Served, tmp_path: Path) -> None:
    """One request at a time, as ours, and answers as long."""
    pytest.importorskip("aiperf")
    artifacts = tmp_path / "artifacts"
    command = [
        *(*pinned(CLIENT_CPUS), str(BIN / "aiperf")),
        *("profile", "--model", served.model, "--url", served.url),
        *("--endpoint-type", "completions", "--streaming", "--ui", "none"),
        *("--concurrency", "1", "--request-count", str(NUM_REQUESTS)),
        *("--warmup-request-count", "5", "--random-seed", "1"),
        *("--isl", str(PROMPT_TOKENS), "--osl", str(OUTPUT_TOKENS)),
        *("--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
        *("--tokenizer", str(served.run_dir), "--artifact-dir", str(artifacts)),
        # One of each: its default is some processes a core, which would be busy beside the model.
        *("--workers-max", "1", "--record-processors", "1"),
        *("--no-gpu-telemetry", "--no-server-metrics"),
    ]

    first = ours(served, tmp_path / "before", seed=1)
    # Told to be offline, it takes the tokenizer's folder for a name on the hub.
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"}
    subprocess.run(command, check=True, timeout=300, env=environment)
    last = ours(served, tmp_path / "after", seed=2)

    export = artifacts / "profile_export_aiperf.json"
    found = json.loads(export.read_text())
    assert found["output_sequence_length"]["avg"] == OUTPUT_TOKENS
    within(
        [first, last],
        Theirs(
            ttft_p50=found["time_to_first_token"]["p50"],
            itl_mean=found["inter_token_latency"]["avg"],
        ),
    )


def test_guidellm_agrees(served: Served, tmp_path: Path) -> None:
    """One request at a time, as ours."""
    pytest.importorskip("guidellm")
    report = tmp_path / "report.json"
    command = [
        *(*pinned(CLIENT_CPUS), str(BIN / "guidellm")),
        *("run", "--disable-console-interactive"),
        *("--backend", f"kind=openai_http,target={served.url},request_format=/v1/completions"),
        *("--profile", "kind=synchronous"),
        *("--constraint", f"kind=max_requests,count={NUM_REQUESTS}"),
        "--data",
        f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
        *("--tokenizer", f"kind=huggingface_auto,model={served.run_dir}"),
        *("--output", f"kind=json,path={report}"),
    ]

    first = ours(served, tmp_path / "before", seed=3)
    subprocess.run(command, check=True, timeout=300)
    last = ours(served, tmp_path / "after", seed=4)

    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    found = benchmark["metrics"]
    within(
        [first, last],
        Theirs(
            ttft_p50=found["time_to_first_token_ms"]["successful"]["percentiles"]["p50"],
            itl_mean=found["inter_token_latency_ms"]["successful"]["mean"],
        ),
    )
