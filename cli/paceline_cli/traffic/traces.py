"""Traces of real traffic, read from the files in which they are published.

| Format | Told by | Time | Prompt | Answer |
|---|---|---|---|---|
| Azure LLM inference | CSV header | `TIMESTAMP`, a date | `ContextTokens` | `GeneratedTokens` |
| BurstGPT | CSV header | `Timestamp`, seconds | `Request tokens` | `Response tokens` |
| Mooncake | JSON lines | `timestamp`, milliseconds | `input_length` | `output_length` |
| Paceline | JSON lines | `arrived_at`, seconds | `prompt_tokens` | `output_tokens` |

The last are the requests of a pod's telemetry, one a line, and the requests of a bench run.
"""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


class TraceError(ValueError):
    """The file is no trace; the message names file, line and column."""


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """One request as it came."""

    at_s: float
    """Seconds after the first request of the trace."""
    prompt: int
    """Tokens."""
    output: int
    """Tokens."""


@dataclass(frozen=True, slots=True)
class Trace:
    """All answered requests of a file, in order of arrival."""

    format: str
    requests: tuple[TracedRequest, ...]
    num_unanswered: int
    """Left out: they had no output token, so they failed where they were recorded."""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.requests[-1].at_s


@dataclass(frozen=True, slots=True)
class _Format:
    name: str
    time: str
    prompt: str
    output: str
    seconds: Callable[[str], float]
    """Raises ValueError."""
    time_rule: str

    @property
    def columns(self) -> tuple[str, str, str]:
        return self.time, self.prompt, self.output


def _date(text: str) -> float:
    moment = datetime.fromisoformat(text.strip())
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _milliseconds(text: str) -> float:
    return float(text) / 1e3


_CSV = (
    _Format(
        "Azure",
        "TIMESTAMP",
        "ContextTokens",
        "GeneratedTokens",
        _date,
        "a date as 2023-11-16 18:15:46.68",
    ),
    _Format("BurstGPT", "Timestamp", "Request tokens", "Response tokens", float, "seconds"),
)
_JSON = (
    _Format(
        "Mooncake", "timestamp", "input_length", "output_length", _milliseconds, "milliseconds"
    ),
    _Format("Paceline", "arrived_at", "prompt_tokens", "output_tokens", float, "seconds"),
)


def read_trace(path: Path) -> Trace:
    """Read a whole file. Raises TraceError."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            return parse_trace(str(path), lines)
    except FileNotFoundError as problem:
        raise TraceError(f"{path}: no such file") from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise TraceError(f"{path}: cannot be read: {problem}") from problem


def parse_trace(name: str, lines: Iterable[str]) -> Trace:
    """Read the lines of the file called `name`. Raises TraceError."""
    source = iter(lines)
    first = next((line for line in source if line.strip()), "")
    rows = _json_rows(name, first, source) if first.lstrip().startswith("{") else None
    found = _json_format(first) if rows is not None else _csv_format(name, first)
    rows = rows if rows is not None else _csv_rows(first, source)
    requests, num_unanswered = [], 0
    for number, row in rows:
        at_s = _seconds(found, row, f"{name}: line {number}")
        prompt = _tokens(found.prompt, row, f"{name}: line {number}")
        output = _tokens(found.output, row, f"{name}: line {number}")
        if output == 0:
            num_unanswered += 1
        else:
            requests.append(TracedRequest(at_s, max(prompt, 1), output))
    requests.sort(key=lambda request: request.at_s)
    if not requests or requests[-1].at_s <= requests[0].at_s:
        raise TraceError(
            f"{name}: a trace needs two answered requests at different times,"
            f" holds {len(requests)} answered"
        )
    start_s = requests[0].at_s
    moved = tuple(TracedRequest(r.at_s - start_s, r.prompt, r.output) for r in requests)
    return Trace(found.name, moved, num_unanswered)


def _csv_format(name: str, header: str) -> _Format:
    columns = [column.strip() for column in next(csv.reader([header]), [])]
    for candidate in _CSV:
        if set(candidate.columns) <= set(columns):
            return candidate
    for candidate in _CSV:
        missing = [column for column in candidate.columns if column not in columns]
        if len(missing) < len(candidate.columns):
            raise TraceError(
                f"{name}: line 1: looks like {candidate.name},"
                f" but has no column {' and no column '.join(missing)}"
            )
    known = "; ".join(f"{item.name} ({', '.join(item.columns)})" for item in (*_CSV, *_JSON))
    raise TraceError(f"{name}: line 1: no header of a known trace, which are: {known}")


def _json_format(first: str) -> _Format:
    """Tell the format by the first line; the first one where it is not clear."""
    try:
        row = json.loads(first)
    except ValueError:
        row = {}  # the rows say what is wrong with the line
    own = next(each for each in _JSON if each.name == "Paceline")
    return own if own.time in row else _JSON[0]


def _csv_rows(header: str, lines: Iterator[str]) -> Iterator[tuple[int, Mapping[str, object]]]:
    columns = [column.strip() for column in next(csv.reader([header]))]
    reader = csv.reader(lines)
    for row in reader:
        if row:
            yield reader.line_num + 1, dict(zip(columns, row, strict=False))


def _json_rows(
    name: str, first: str, lines: Iterator[str]
) -> Iterator[tuple[int, Mapping[str, object]]]:
    number = 0
    for number, line in enumerate((first, *lines), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as problem:
            raise TraceError(f"{name}: line {number}: not JSON: {problem}") from problem
        if not isinstance(row, dict):
            raise TraceError(f"{name}: line {number}: must be an object, got {line.strip()[:40]}")
        yield number, row


def _seconds(found: _Format, row: Mapping[str, object], place: str) -> float:
    value = row.get(found.time)
    try:
        seconds = found.seconds(str(value))
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise TraceError(f"{place}, column {found.time}: must be {found.time_rule}, got {value!r}")
    return seconds


def _tokens(column: str, row: Mapping[str, object], place: str) -> int:
    value = row.get(column)
    try:
        number = float(str(value))
    except ValueError:
        number = math.nan
    if not (number >= 0 and number == int(number)):
        raise TraceError(f"{place}, column {column}: must be a count of tokens, got {value!r}")
    return int(number)
