"""Readers of public request traces; none of their data is kept in this repository.

Azure     TIMESTAMP,ContextTokens,GeneratedTokens              (Azure Public Dataset)
BurstGPT  Timestamp,Model,Request tokens,Response tokens,...   (HPMLL/BurstGPT)
Mooncake  a JSON object a line: timestamp (ms), input_length, output_length, hash_ids
"""

import csv
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import numpy as np

from plants.requests import Requests

MOONCAKE_BLOCK_TOKENS = 512
Row = tuple[float, int, int, int]
"""Seconds, prompt, output, cached tokens."""


class TraceError(ValueError):
    """A trace that is in none of the formats known."""


def load(path: Path) -> Requests:
    """Read a trace, whichever of the three formats it is in. The first request arrives at 0."""
    with path.open(encoding="utf-8", newline="") as lines:
        head = lines.readline().strip()
        lines.seek(0)
        if head.startswith("{"):
            return _requests(_mooncake(lines))
        columns = {name.strip() for name in head.split(",")}
        if {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= columns:
            return _requests(_azure(lines))
        if {"Timestamp", "Request tokens", "Response tokens"} <= columns:
            return _requests(_burstgpt(lines))
    raise TraceError(f"{path}: neither Azure, BurstGPT nor Mooncake, its first line is {head!r}")


def excerpt(trace: Requests, *, first: int, rate_rps: float, duration_s: float) -> Requests:
    """A stretch of the trace at a wanted mean rate: gaps are scaled alike, lengths stay."""
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


def _azure(lines: Iterable[str]) -> list[Row]:
    rows = []
    for row in csv.DictReader(lines):
        # Seven digits of a second are written; datetime holds six.
        at = datetime.fromisoformat(row["TIMESTAMP"].strip()[:26])
        seconds = (at - datetime(1970, 1, 1)).total_seconds()  # noqa: DTZ001 - the file names no zone, only differences count
        rows.append((seconds, int(row["ContextTokens"]), int(row["GeneratedTokens"]), 0))
    return rows


def _burstgpt(lines: Iterable[str]) -> list[Row]:
    return [
        (float(row["Timestamp"]), int(row["Request tokens"]), int(row["Response tokens"]), 0)
        for row in csv.DictReader(lines)
    ]


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
