from pathlib import Path

import numpy as np
import pytest

from paceline_cli.traffic.traces import TraceError
from tune_report.traces import MOONCAKE_BLOCK_TOKENS, excerpt, load

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:16:00.0000000,10,0
2023-11-16 18:15:50.9951690,396,109
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,API log
118,GPT-4,417,276,693,Conversation log
"""
MOONCAKE = """{"timestamp": 0, "input_length": 1200, "output_length": 50, "hash_ids": [1, 2, 3]}
{"timestamp": 1500, "input_length": 1300, "output_length": 60, "hash_ids": [1, 2, 4]}
{"timestamp": 2000, "input_length": 1000, "output_length": 70, "hash_ids": [5, 2]}
{"timestamp": 3000, "input_length": 1024, "output_length": 80, "hash_ids": [1, 2]}
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace"
    path.write_text(text)
    return path


def test_azure_is_sorted_starts_at_zero_and_leaves_out_requests_without_output(
    tmp_path: Path,
) -> None:
    trace = load(written(tmp_path, AZURE))

    assert trace.arrival_s == pytest.approx([0.0, 4.314579])
    assert trace.prompt.tolist() == [374, 396]
    assert trace.output.tolist() == [44, 109]
    assert trace.cached.tolist() == [0, 0]


def test_burstgpt_leaves_out_failed_requests(tmp_path: Path) -> None:
    trace = load(written(tmp_path, BURSTGPT))

    assert trace.arrival_s.tolist() == [0.0, 113.0]
    assert trace.prompt.tolist() == [472, 417]
    assert trace.output.tolist() == [18, 276]


def test_mooncake_hits_are_the_unbroken_chain_of_blocks_seen_before(tmp_path: Path) -> None:
    """Block 2 of the third request follows a block never seen: its content is not the same."""
    trace = load(written(tmp_path, MOONCAKE))

    assert trace.arrival_s.tolist() == [0.0, 1.5, 2.0, 3.0]
    block = MOONCAKE_BLOCK_TOKENS
    # The last prompt is in the cache as a whole; one token must still be computed.
    assert trace.cached.tolist() == [0, 2 * block, 0, 2 * block - 1]


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="trace"):
        load(written(tmp_path, "when,what\n1,2\n"))


def test_an_excerpt_keeps_lengths_and_the_pattern_of_gaps_at_the_wanted_rate(
    tmp_path: Path,
) -> None:
    lines = [
        f'{{"timestamp": {1000 * i * i}, "input_length": {i + 1}, "output_length": 5, '
        '"hash_ids": []}'
        for i in range(100)
    ]
    trace = load(written(tmp_path, "\n".join(lines)))

    chosen = excerpt(trace, first=10, rate_rps=2.0, duration_s=20.0)

    assert len(chosen) == 40
    assert chosen.prompt.tolist() == list(range(11, 51))
    assert 18.0 < chosen.arrival_s[-1] < 20.0
    gaps, before = np.diff(chosen.arrival_s), np.diff(trace.arrival_s[10:50])
    assert gaps / gaps[0] == pytest.approx(before / before[0])
