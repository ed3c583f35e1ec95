"""A run's result as JSON, with a version of its schema: written by `run`, read by `check`.

JSON has no infinity: it is the string `inf`.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from paceline_cli.bench.measures import Measures
from paceline_cli.errors import BadInputError
from paceline_cli.traffic.client_health import ClientHealth
from paceline_tuner.service_spec import SLA

RUN_SCHEMA: Final = "paceline.dev/bench-run/v1"
_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class RunResult:
    """Everything that a run says."""

    schema: str
    service: str
    """Its name, or its address."""
    model: str
    client_machine: str
    traffic: str
    """In words."""
    seed: int
    warmup: str
    """What was left out."""
    sla: SLA
    measures: Measures
    client: ClientHealth
    notes: tuple[str, ...] = ()


def as_json(result: object) -> str:
    """Write any dataclass of figures."""
    return json.dumps(_plain(result), indent=2, allow_nan=False)


def read_run(path: Path) -> RunResult:
    """Read a result that a run wrote. Raises BadInputError."""
    return read_result(path, RunResult, RUN_SCHEMA)


def read_result(path: Path, kind: type[_Read], schema: str) -> _Read:
    """Read a result of one schema. Raises BadInputError."""
    found = _loaded(path)
    told = found.get("schema") if isinstance(found, dict) else None
    if told != schema:
        raise BadInputError(f"{path}: schema must be {schema}, got {told!r}")
    return _converted(found, kind, path)


def read_as(path: Path, kind: type[_Read]) -> _Read:
    """Read what `as_json` wrote. Raises BadInputError."""
    return _converted(_loaded(path), kind, path)


def _loaded(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as problem:
        raise BadInputError(f"{path}: no such file") from problem
    except (OSError, ValueError) as problem:
        raise BadInputError(f"{path}: cannot be read as JSON: {problem}") from problem


def _converted(found: Any, kind: type[_Read], path: Path) -> _Read:
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as problem:
        raise BadInputError(f"{path}: {problem}") from problem


def _plain(value: object) -> Any:
    """Spell what JSON has no word for; msgspec would write infinity as null."""
    fields = getattr(value, "__dataclass_fields__", None)
    if fields is not None:
        return {name: _plain(getattr(value, name)) for name in fields}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value
