"""Public request traces as a simulated engine's requests; none of their data is kept here.

The operator's own reader knows the formats (Azure, BurstGPT, Mooncake). It leaves out prefix hits,
which Mooncake's `hash_ids` show, and which the simulated engine needs: they are found here.
"""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from paceline_cli.traffic.traces import TraceError, read_trace
from paceline_sim.requests import Requests

MOONCAKE_BLOCK_TOKENS = 512
Row = tuple[float, int, int, int]
"""Seconds, prompt, output, cached tokens."""


@lru_cache(maxsize=1)
def load(path: Path) -> Requests:
    """Read a trace in any of the formats. The first request arrives at 0. Raises TraceError."""
    with path.open(encoding="utf-8-sig") as lines:
        if lines.readline().lstrip().startswith("{"):
            lines.seek(0)
            return _requests(_mooncake(lines))
    return _requests([(r.at_s, r.prompt, r.output, 0) for r in read_trace(path).requests])


def excerpt(trace: Requests, *, first: int, rate_rps: float, duration_s: float) -> Requests:
    """Return a stretch of the trace at a given mean rate: gaps are scaled, lengths stay."""
    count = min(int(rate_rps * duration_s), len(trace))
    first = max(0, min(first, len(trace) - count))
    chosen = slice(first, first + count)
    at_s = trace.arrival_s[chosen] - trace.arrival_s[first]
    scale = duration_s / max(float(at_s[-1]), 1e-9) * count / (count + 1)
    return replace(
        trace,
        arrival_s=at_s * scale,
        prompt=trace.prompt[chosen],
        output=trace.output[chosen],
        cached=trace.cached[chosen],
        lane=trace.lane[chosen],
    )


def _mooncake(lines: Iterable[str]) -> list[Row]:
    """A hash names a block together with all before it: a prefix that was seen is a hit."""
    seen: set[int] = set()
    rows = []
    for line in lines:
        if not line.strip():
            continue
        row = json.loads(line)
        prompt, hits = int(row["input_length"]), 0
        for block in row["hash_ids"]:
            if block not in seen:
                break
            hits += 1
        seen.update(row["hash_ids"])
        cached = max(0, min(hits * MOONCAKE_BLOCK_TOKENS, prompt - 1))
        rows.append((float(row["timestamp"]) / 1e3, prompt, int(row["output_length"]), cached))
    return rows


def _requests(rows: list[Row]) -> Requests:
    """Sort by arrival; requests without a prompt or an output (failed ones) are left out."""
    kept = sorted(row for row in rows if row[1] > 0 and row[2] > 0)
    if not kept:
        raise TraceError("the trace holds no request with a prompt and an output")
    seconds, prompt, output, cached = (np.array(column) for column in zip(*kept, strict=True))
    return Requests(
        arrival_s=seconds.astype(np.float64) - float(seconds[0]),
        prompt=prompt.astype(np.int64),
        output=output.astype(np.int64),
        cached=cached.astype(np.int64),
        lane=np.zeros(len(kept), dtype=np.int8),
    )
